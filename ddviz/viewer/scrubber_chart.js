// The chart of the scrubber: one bar per step, as tall as its accept length, over a band of its stage times; more
// steps than fit are binned. Accepted nodes are painted solid, the bonus as the cap on top.
//
//   ▂ █ ▅ ▂     accept length, dotted line: the mean
//   ▒ ▒ ░ ▒     stage times stacked, verify at the bottom; a step slower than 19 of 20 is cut off
//
// What all steps look like is painted once per new step or size; a frame then only marks the present step.

const [BAR_WIDEST, BIN_WIDTH] = [18, 3];
const [TIMES_HEIGHT, CHART_GAP] = [15, 4];
const TIME_STACK = ["verify", "draft", "build", "compile", "commit", "other"]; // bottom first
const STAGE_COLOURS = { draft: 1, build: 2, compile: 3, verify: 4, commit: 5, other: 6 }; // as in detail.css
const ANNOUNCED = 2500; // ms

function createChart(parent, { scope, root, onStep }) {
  const chart = make("canvas", "ddviz-chart");
  chart.tabIndex = 0;
  chart.setAttribute("role", "slider");
  chart.setAttribute("aria-label", "Step");
  chart.setAttribute("aria-valuemin", "0");
  const [tip, said] = [make("div", "ddviz-tip"), make("div", "ddviz-announced")];
  said.setAttribute("role", "status");
  said.hidden = true;
  append(parent, append(make("div", "ddviz-chart-box"), chart, tip, said));
  const size = { width: 0, height: 0 }; // measured when it changes: asking in every frame costs page layouts
  const state = { rows: [], step: null, base: document.createElement("canvas"), painted: "", theme: 0, size };
  const palette = newPalette(root);
  const paint = newFrame(scope, () => paintChart(chart, state, palette, root));
  followChartPointer({ scope, chart, tip, state, onStep });
  scope.observe(new ResizeObserver(measure), [chart]);

  function measure() {
    Object.assign(size, { width: chart.clientWidth, height: chart.clientHeight });
    paint();
  }

  // Takes the viewer's own list of rows, which only ever grows.
  function setRows(rows) {
    state.rows = rows;
    chart.setAttribute("aria-valuemax", String(Math.max(0, rows.length - 1)));
    paint();
  }

  function mark(i) {
    const row = state.rows[i];
    state.step = i;
    chart.setAttribute("aria-valuenow", String(i ?? 0));
    chart.setAttribute("aria-valuetext", row ? `step ${row.index}, accept length ${row.accept_len}` : "no steps");
    said.hidden = true;
    paint();
  }

  // Words over the chart for a moment.
  function announce(text) {
    say(said, text);
    scope.later("announce", ANNOUNCED, () => (said.hidden = true));
  }

  function repaint() {
    state.theme++;
    palette.forget();
    paint();
  }

  function clear() {
    tip.hidden = true;
    repaint();
    setRows([]);
    mark(null);
  }

  clear();
  return { element: chart, setRows, mark, clear, repaint, announce };
}

// A press chooses the step under it, a drag goes through steps, resting on one tells of it.
function followChartPointer({ scope, chart, tip, state, onStep }) {
  let dragging = false;
  const stepAt = (event) => {
    const x = event.clientX - chart.getBoundingClientRect().left;
    const { width } = barsOf(state.rows.length, chart.clientWidth);
    return clamp(Math.floor(x / width), 0, state.rows.length - 1);
  };
  scope.listen(chart, "pointerdown", (event) => {
    if (!state.rows.length || event.button !== 0) return;
    dragging = true;
    chart.setPointerCapture(event.pointerId);
    onStep(stepAt(event));
  });
  scope.listen(chart, "pointermove", (event) => {
    if (!state.rows.length) return;
    const i = stepAt(event);
    if (dragging) onStep(i);
    showTip(tip, chart, state, i, event);
  });
  scope.listen(chart, "pointerup", () => (dragging = false));
  scope.listen(chart, "pointercancel", () => (dragging = false));
  scope.listen(chart, "pointerleave", () => (tip.hidden = true));
}

// Bars of equal width, or, where they would be too thin, bins of a few steps each.
function barsOf(count, width) {
  const fit = width / Math.max(count, 1);
  const each = fit >= BIN_WIDTH ? 1 : Math.ceil((count * BIN_WIDTH) / width);
  return { width: Math.min(fit, BAR_WIDEST), each };
}

function paintChart(chart, state, palette, root) {
  const { rows, step, base } = state;
  const { width, height } = state.size;
  if (!width) return;
  const bars = barsOf(rows.length, width);
  const colours = palette();
  const context = sharpContext(chart, width, height);
  const painted = [rows.length, width, height, chart.width, state.theme].join(" ");
  if (painted !== state.painted) paintBase(base, binsOf(rows, bars.each), { bars, width, height, colours, root });
  state.painted = painted;
  if (step !== null && rows.length) {
    const first = step - (step % bars.each);
    const x = first * bars.width;
    const wide = Math.max((Math.min(first + bars.each, rows.length) - first) * bars.width, 3);
    paintMark(context, x, wide, height, colours);
  }
  context.drawImage(base, 0, 0, width, height);
}

// The column of the present step, with a pointer at its foot.
function paintMark(context, x, wide, height, colours) {
  context.fillStyle = colours.focus;
  context.globalAlpha = 0.2;
  context.fillRect(x - 1, 0, wide + 1, height);
  context.globalAlpha = 1;
  context.fillRect(x - 1, height - 2, wide + 1, 2);
  context.fillRect(x - 1, 0, wide + 1, 1.5);
}

// Means of the steps that share a bar: { length, times by stage }.
function binsOf(rows, each) {
  const bins = [];
  for (let i = 0; i < rows.length; i += each) {
    const of = rows.slice(i, i + each);
    const times = Object.fromEntries(TIME_STACK.map((name) => [name, 0]));
    for (const { stages } of of) {
      for (const [name, ms] of Object.entries(stages)) times[name in times ? name : "other"] += ms / of.length;
    }
    const whole = TIME_STACK.reduce((sum, name) => sum + times[name], 0);
    bins.push({ count: of.length, length: of.reduce((sum, row) => sum + row.accept_len, 0) / of.length, times, whole });
  }
  return bins;
}

function paintBase(base, bins, { bars, width, height, colours, root }) {
  const context = sharpContext(base, width, height);
  const sorted = bins.map((bin) => bin.whole).sort((a, b) => a - b);
  const slow = sorted[Math.floor(sorted.length * 0.95)] ?? 0;
  const floor = slow > 0 ? height - 3 - TIMES_HEIGHT - CHART_GAP : height - 3;
  const tallest = bins.reduce((most, bin) => Math.max(most, bin.length), 4);
  const unit = (floor - 3) / tallest;
  const style = getComputedStyle(root);
  const stage = (name) => style.getPropertyValue(`--ddviz-stage-${STAGE_COLOURS[name]}`);
  const stages = Object.fromEntries(TIME_STACK.map((name) => [name, stage(name)]));
  let x = 0;
  for (const bin of bins) {
    const wide = bin.count * bars.width;
    const gap = wide >= 5 ? 1.5 : wide >= 3 ? 1 : 0;
    paintLength(context, x, wide - gap, bin.length, { floor, unit, colours });
    if (slow > 0) paintTimes(context, x, wide - gap, bin, { foot: height - 3, unit: TIMES_HEIGHT / slow, stages });
    x += wide;
  }
  const [sum, count] = bins.reduce(([s, n], bin) => [s + bin.length * bin.count, n + bin.count], [0, 0]);
  if (count) paintMean(context, floor - (unit * sum) / count, { width: x, colours });
}

function paintLength(context, x, wide, length, { floor, unit, colours }) {
  const accepted = Math.max(0, length - 1) * unit;
  const bonus = Math.min(length, 1) * unit;
  context.globalAlpha = 0.8;
  context.fillStyle = colours.accepted;
  context.fillRect(x, floor - accepted, wide, accepted);
  context.fillStyle = colours.bonus;
  context.fillRect(x, floor - accepted - bonus, wide, Math.max(bonus - 1, 1));
  context.globalAlpha = 1;
}

function paintTimes(context, x, wide, { times }, { foot, unit, stages }) {
  let y = foot;
  for (const name of TIME_STACK) {
    const tall = Math.min(times[name] * unit, y - (foot - TIMES_HEIGHT));
    context.fillStyle = stages[name];
    context.fillRect(x, y - tall, wide, tall);
    y -= tall;
  }
}

function paintMean(context, y, { width, colours }) {
  context.strokeStyle = colours.muted;
  context.globalAlpha = 0.55;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(0, Math.round(y) + 0.5);
  context.lineTo(width, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
  context.globalAlpha = 1;
}

// Accept length, times by stage, and why a jump would stop here.
function showTip(tip, chart, { rows }, i, event) {
  const row = rows[i];
  const marks = Object.values(JUMPS).filter(({ holds }) => holds(row, { mean: 0 }));
  const stages = Object.entries(row.stages).map(([name, ms]) => `${name} ${milliseconds(ms)}`);
  const parts = [`step ${row.index} · accept length ${row.accept_len} · ${milliseconds(row.ms)} ms`];
  if (stages.length) parts.push(stages.join(" · "));
  if (marks.length) parts.push(marks.map(({ says }) => says.split(":")[0]).join(" · "));
  tip.hidden = false;
  tip.replaceChildren(...parts.map((text) => make("div", "", text)));
  const x = event.clientX - chart.getBoundingClientRect().left;
  tip.style.left = `${clamp(x - tip.offsetWidth / 2, 0, Math.max(0, chart.clientWidth - tip.offsetWidth))}px`;
}
