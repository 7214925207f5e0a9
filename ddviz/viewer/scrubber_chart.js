// The chart of the scrubber: one bar per step, as tall as its accept length; more steps than fit are binned.
// Accepted nodes are painted solid, the bonus as the cap on top.

const [BAR_WIDEST, BIN_WIDTH] = [18, 3];

function createChart(parent, { scope, root, onStep }) {
  const chart = make("canvas", "ddviz-chart");
  chart.tabIndex = 0;
  chart.setAttribute("role", "slider");
  chart.setAttribute("aria-label", "Step");
  chart.setAttribute("aria-valuemin", "0");
  const tip = make("div", "ddviz-tip");
  append(parent, append(make("div", "ddviz-chart-box"), chart, tip));
  const state = { rows: [], step: null, tallest: 4, sum: 0, counted: 0 };
  const paint = newFrame(scope, () => paintChart(chart, state, paletteOf(root)));
  followChartPointer({ scope, chart, tip, state, onStep });
  scope.observe(new ResizeObserver(paint), [chart]);

  // Takes the viewer's own list of rows, which only ever grows.
  function setRows(rows) {
    state.rows = rows;
    for (; state.counted < rows.length; state.counted++) {
      state.tallest = Math.max(state.tallest, rows[state.counted].accept_len);
      state.sum += rows[state.counted].accept_len;
    }
    chart.setAttribute("aria-valuemax", String(Math.max(0, rows.length - 1)));
    paint();
  }

  function mark(i) {
    const row = state.rows[i];
    state.step = i;
    chart.setAttribute("aria-valuenow", String(i ?? 0));
    chart.setAttribute("aria-valuetext", row ? `step ${row.index}, accept length ${row.accept_len}` : "no steps");
    paint();
  }

  function clear() {
    Object.assign(state, { tallest: 4, sum: 0, counted: 0 });
    tip.hidden = true;
    setRows([]);
    mark(null);
  }

  clear();
  return { element: chart, setRows, mark, clear, paint };
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
    showTip(tip, chart, state.rows[i], event);
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

function paintChart(chart, { rows, step, tallest, sum }, colours) {
  const [width, height] = [chart.clientWidth, chart.clientHeight];
  if (!width) return;
  const context = sharpContext(chart, width, height);
  const bars = barsOf(rows.length, width);
  const unit = (height - 6) / tallest;
  for (let i = 0; i < rows.length; i += bars.each) {
    const end = Math.min(i + bars.each, rows.length);
    let total = 0;
    for (let j = i; j < end; j++) total += rows[j].accept_len;
    const mean = total / (end - i);
    const current = step !== null && step >= i && step < end;
    paintBar(context, i * bars.width, (end - i) * bars.width, mean, current, { unit, height, colours });
  }
  if (rows.length) paintMean(context, sum / rows.length, { unit, height, width, colours });
}

function paintBar(context, x, width, length, current, { unit, height, colours }) {
  const gap = width >= 5 ? 1.5 : width >= 3 ? 1 : 0;
  const accepted = Math.max(0, length - 1);
  const base = height - 3;
  if (current) {
    context.fillStyle = colours.focus;
    context.globalAlpha = 0.16;
    context.fillRect(x - 1, 0, Math.max(width - gap, 2) + 2, height);
  }
  context.globalAlpha = current ? 1 : 0.62;
  context.fillStyle = colours.accepted;
  context.fillRect(x, base - accepted * unit, width - gap, accepted * unit);
  context.fillStyle = colours.bonus;
  const bonus = Math.min(length, 1) * unit;
  context.fillRect(x, base - accepted * unit - bonus, width - gap, Math.max(bonus - 1, 1));
  if (current) {
    context.fillStyle = colours.focus;
    context.fillRect(x - 1, height - 2, Math.max(width - gap, 2) + 2, 2);
  }
  context.globalAlpha = 1;
}

function paintMean(context, mean, { unit, height, width, colours }) {
  const y = Math.round(height - 3 - mean * unit) + 0.5;
  context.strokeStyle = colours.muted;
  context.globalAlpha = 0.55;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(width, y);
  context.stroke();
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function showTip(tip, chart, row, event) {
  tip.hidden = false;
  tip.textContent = `step ${row.index} · accept length ${row.accept_len} · ${milliseconds(row.ms)} ms`;
  const x = event.clientX - chart.getBoundingClientRect().left;
  tip.style.left = `${clamp(x - tip.offsetWidth / 2, 0, Math.max(0, chart.clientWidth - tip.offsetWidth))}px`;
}
