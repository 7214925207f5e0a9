// Accept length and time per token of two traces over each other, along the output.
//
// A is a solid line, B a dashed one. Where the texts part a line with a sign says so; what follows is shaded, since it
// is another text.

const COMPARE_BANDS = [
  { name: "accept length", share: 0.62 },
  { name: "ms per token", share: 0.38 },
];
const [BAND_TOP, BAND_GAP] = [14, 4];
const BANDS_LEFT = 92; // room for their names

function createCompareChart(parent, { scope, root, diff, goTo, goBy }) {
  const chart = make("canvas", "ddviz-compare-chart");
  const last = Math.max(diff.a.tokens, diff.b.tokens, 2) - 1;
  chart.tabIndex = 0;
  chart.setAttribute("role", "slider");
  chart.setAttribute("aria-label", "Place in the output");
  chart.setAttribute("aria-valuemin", "0");
  chart.setAttribute("aria-valuemax", String(last));
  append(parent, chart);
  let position = null;
  const paint = newFrame(scope, () => paintCompare(chart, { diff, last, position, colours: paletteOf(root) }));
  const positionAt = (event) => {
    const { left, width } = chart.getBoundingClientRect();
    return Math.round(clamp((event.clientX - left - BANDS_LEFT) / (width - BANDS_LEFT), 0, 1) * last);
  };
  scope.observe(new ResizeObserver(paint), [chart]);
  scope.listen(chart, "pointerdown", (event) => {
    chart.setPointerCapture(event.pointerId);
    goTo(positionAt(event));
  });
  scope.listen(chart, "pointermove", (event) => event.buttons && goTo(positionAt(event)));
  scope.listen(chart, "keydown", (event) => {
    const does = { ArrowLeft: () => goBy(-1), ArrowRight: () => goBy(1), Home: () => goTo(0), End: () => goTo(last) };
    if (!does[event.key]) return;
    event.preventDefault();
    does[event.key]();
  });

  function mark(at) {
    position = at;
    chart.setAttribute("aria-valuenow", String(at ?? 0));
    chart.setAttribute("aria-valuetext", at === null ? "no steps" : `token ${at}`);
    paint();
  }

  return { mark, repaint: paint };
}

function paintCompare(chart, { diff, last, position, colours }) {
  const [width, height] = [chart.clientWidth, chart.clientHeight];
  if (!width) return;
  const context = sharpContext(chart, width, height);
  const xOf = (at) => BANDS_LEFT + (at / last) * (width - BANDS_LEFT - 2) + 1;
  if (diff.parts_at !== null) paintParting(context, xOf(diff.parts_at), { width, height, colours });
  const room = height - COMPARE_BANDS.length * (BAND_TOP + BAND_GAP);
  let top = 0;
  COMPARE_BANDS.forEach(({ name, share }, k) => {
    const tall = room * share;
    const lines = ["a", "b"].map((side) => pixelsOf(diff[side], k, width, xOf));
    const most = Math.max(k ? highOf(lines) : 4, ...(k ? [] : lines.flat().filter((value) => value !== null)), 1e-9);
    const band = { foot: top + BAND_TOP + tall, unit: tall / most };
    context.fillStyle = colours.muted;
    context.font = "11px system-ui, sans-serif";
    context.fillText(name, 0, top + BAND_TOP + tall / 2 + 4);
    paintLine(context, lines[0], band, colours.accepted, []);
    paintLine(context, lines[1], band, colours.bonus, [4, 3]);
    top += BAND_TOP + tall + BAND_GAP;
  });
  if (position === null) return;
  context.fillStyle = colours.focus;
  context.fillRect(xOf(position) - 1, 0, 2, height);
}

// Mean over the steps that share a pixel; null where there is none.
function pixelsOf(side, band, width, xOf) {
  const [sums, counts] = [new Float64Array(width), new Uint32Array(width)];
  side.starts.forEach((start, step) => {
    const stop = side.starts[step + 1] ?? side.tokens;
    const value = band ? side.ms[step] / Math.max(1, stop - start) : side.accept_lengths[step];
    if (band && side.ms[step] === null) return;
    const first = Math.floor(xOf(start));
    for (let x = first; x < Math.max(first + 1, Math.floor(xOf(stop))) && x < width; x++) {
      sums[x] += value;
      counts[x] += 1;
    }
  });
  return Array.from(sums, (sum, x) => (counts[x] ? sum / counts[x] : null));
}

// All but the highest twentieth: one slow step must not flatten the rest.
function highOf(lines) {
  const values = lines.flat().filter((value) => value !== null).sort((a, b) => a - b);
  return values.length ? values[Math.floor((values.length - 1) * 0.95)] * 1.15 : 1;
}

function paintLine(context, values, { foot, unit }, colour, dash) {
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  let isDrawing = false;
  values.forEach((value, x) => {
    if (value === null) return (isDrawing = false);
    const y = foot - Math.min(value * unit, foot);
    if (isDrawing) context.lineTo(x, y);
    else context.moveTo(x, y);
    isDrawing = true;
  });
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}

function paintParting(context, x, { width, height, colours }) {
  context.fillStyle = colours.warn;
  context.globalAlpha = 0.09;
  context.fillRect(x, 0, width - x, height);
  context.globalAlpha = 1;
  context.fillRect(x - 0.5, 0, 1, height);
  const says = "≠ the texts part";
  context.font = "11px system-ui, sans-serif";
  const wide = context.measureText(says).width;
  context.fillText(says, x + 5 + wide < width ? x + 4 : x - 4 - wide, 10);
}
