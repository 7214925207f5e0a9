// A chart as SVG: bars of a share of what was tried, or stacks over time. Each bar is a button with a sentence; of a
// chart one bar at a time can be reached by Tab, the arrows go from bar to bar.
//
// In:  a chart of charts_data.js, onBar(bar). Out: a figure; `markStep` moves the line of the present step.

const [CHART_WIDE, CHART_TALL] = [440, 168]; // of the viewBox
const CHART_EDGE = { left: 40, right: 64, top: 10, bottom: 30 };
const PLOT_WIDE = CHART_WIDE - CHART_EDGE.left - CHART_EDGE.right;
const PLOT_TALL = CHART_TALL - CHART_EDGE.top - CHART_EDGE.bottom;

function chartFigure(chart, onBar) {
  const figure = make("figure", "ddviz-figure");
  const says = chart.says || "This trace does not hold what it takes.";
  append(figure, make("h4", "ddviz-heading", chart.title), make("p", "ddviz-figure-says", says));
  figure.dataset.chart = chart.name;
  if (!chart.bars.length) return { figure, markStep: () => {} };
  const svg = makeSvg("svg", "ddviz-figure-plot");
  svg.setAttribute("viewBox", `0 0 ${CHART_WIDE} ${CHART_TALL}`);
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", `${chart.title}. ${says}`);
  const most = chart.kind === "share" ? 1 : niceMost(chart);
  svg.append(...axes(chart, most), ...bars(chart, most), ...overlays(chart, most));
  const line = svgLine("ddviz-figure-now", 0, CHART_EDGE.top - 4, 0, CHART_TALL - CHART_EDGE.bottom);
  line.style.display = "none";
  svg.append(line);
  followBars(svg, chart, onBar);
  append(figure, svg);
  return { figure, markStep: (i) => markStep(line, chart, i) };
}

function xOfBar(chart, k) {
  return CHART_EDGE.left + (k * PLOT_WIDE) / chart.bars.length;
}

function yOfValue(value, most) {
  return CHART_EDGE.top + PLOT_TALL * (1 - clamp(value / most, 0, 1));
}

// What nineteen of twenty bars stay below, so that one slow step does not flatten the rest; and a round number.
function niceMost({ bars: all }) {
  const sums = all.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0)).sort((a, b) => a - b);
  const high = Math.max(sums[Math.floor((sums.length - 1) * 0.95)] * 1.1, 1e-9);
  const unit = 10 ** Math.floor(Math.log10(high));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * unit).find((top) => top >= high) ?? 10 * unit;
}

function axes(chart, most) {
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const y = yOfValue(share * most, most);
    parts.push(svgLine("ddviz-figure-grid", CHART_EDGE.left, y, CHART_EDGE.left + PLOT_WIDE, y));
    const says = chart.kind === "share" ? `${100 * share}%` : String(Number((share * most).toPrecision(2)));
    parts.push(svgText("ddviz-figure-tick ddviz-figure-left", CHART_EDGE.left - 6, y + 3.5, says));
  }
  const count = chart.bars.length;
  const every = Math.max(1, Math.ceil(count / 10));
  chart.bars.forEach(({ label }, k) => {
    if (k % every) return;
    const x = chart.diagonal ? xOfBar(chart, k) : xOfBar(chart, k) + PLOT_WIDE / count / 2;
    parts.push(svgText("ddviz-figure-tick", x, CHART_TALL - CHART_EDGE.bottom + 13, label));
  });
  const below = chart.kind === "share" ? chart.axis : `step (${chart.unit} upward)`;
  parts.push(svgText("ddviz-figure-tick", CHART_EDGE.left + PLOT_WIDE / 2, CHART_TALL - 4, below));
  return parts;
}

function bars(chart, most) {
  const wide = PLOT_WIDE / chart.bars.length;
  const gap = wide >= 6 ? Math.min(6, wide * 0.2) : wide >= 3 ? 0.8 : 0;
  return chart.bars.map((bar, k) => {
    const [x, width] = [xOfBar(chart, k) + gap / 2, Math.max(wide - gap, 0.6)];
    const group = makeSvg("g", "ddviz-figure-bar");
    group.setAttribute("role", "button");
    group.setAttribute("aria-label", bar.says);
    group.setAttribute("tabindex", k ? "-1" : "0");
    group.dataset.bar = k;
    const title = makeSvg("title");
    title.textContent = bar.says;
    const catcher = svgRect("ddviz-figure-catcher", xOfBar(chart, k), CHART_EDGE.top, wide, PLOT_TALL);
    group.append(title, catcher, ...(chart.kind === "share" ? shareParts(bar, x, width) : stackParts(bar, x, width, most)));
    return group;
  });
}

// Solid as far as it was accepted; how often it was tried stands above as a number.
function shareParts({ share, count }, x, width) {
  if (share === null) return [];
  const y = yOfValue(share, 1);
  const parts = [svgRect("ddviz-figure-share", x, y, width, CHART_EDGE.top + PLOT_TALL - y)];
  if (width < 14) return parts;
  const inside = y < CHART_EDGE.top + 12;
  const kind = inside ? "ddviz-figure-count ddviz-figure-inside" : "ddviz-figure-count";
  return [...parts, svgText(kind, x + width / 2, inside ? y + 11 : y - 3, String(count))];
}

function stackParts({ parts }, x, width, most) {
  let below = 0;
  return parts
    .filter(([, value]) => value > 0)
    .map(([kind, value]) => {
      const [top, foot] = [yOfValue(below + value, most), yOfValue(below, most)];
      below += value;
      return svgRect(`ddviz-figure-${kind}`, x, top, width, foot - top);
    });
}

// The mean, the diagonal of a drafter that knows itself, the names of a stack at its right.
function overlays(chart, most) {
  const [left, right] = [CHART_EDGE.left, CHART_EDGE.left + PLOT_WIDE];
  const line = (from, to, name) => {
    const [y0, y1] = [yOfValue(from, most), yOfValue(to, most)];
    const label = svgText("ddviz-figure-name", right + 6, y1 + 3.5, name);
    return [svgLine("ddviz-figure-line", left, y0, right, y1), label];
  };
  const names = (chart.stack ?? []).flatMap((name, k) => {
    const y = CHART_EDGE.top + PLOT_TALL - 13 * k - 8; // as they are stacked, the first at the foot
    return [svgRect(`ddviz-figure-${name}`, right + 6, y, 8, 8), svgText("ddviz-figure-name", right + 18, y + 8, name)];
  });
  if (chart.diagonal) names.push(...line(0, 1, "equal"));
  if (chart.line) names.push(...line(chart.line, chart.line, `mean ${chart.line.toFixed(2)}`));
  return names;
}

function followBars(svg, chart, onBar) {
  const groups = Array.from(svg.querySelectorAll("[data-bar]"));
  const barOf = (event) => event.target.closest("[data-bar]");
  svg.addEventListener("click", (event) => {
    const group = barOf(event);
    if (group) onBar(chart.bars[group.dataset.bar]);
  });
  svg.addEventListener("keydown", (event) => {
    const [group, way] = [barOf(event), { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key]];
    if (!group || (!way && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    if (!way) return onBar(chart.bars[group.dataset.bar]);
    return focusBar(groups, clamp(Number(group.dataset.bar) + way, 0, groups.length - 1));
  });
}

function focusBar(groups, k) {
  for (const group of groups) group.setAttribute("tabindex", group === groups[k] ? "0" : "-1");
  groups[k]?.focus({ preventScroll: true });
}

function markStep(line, chart, i) {
  const k = chart.kind === "time" ? chart.bars.findIndex(({ steps }) => i >= steps[0] && i <= steps[steps.length - 1]) : -1;
  line.style.display = k < 0 ? "none" : "";
  if (k < 0) return;
  const x = xOfBar(chart, k) + PLOT_WIDE / chart.bars.length / 2;
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
}

function svgRect(className, x, y, width, height) {
  const rect = makeSvg("rect", className);
  place(rect, x, y);
  rect.setAttribute("width", width);
  rect.setAttribute("height", Math.max(0, height));
  return rect;
}

function svgLine(className, x1, y1, x2, y2) {
  const line = makeSvg("line", className);
  for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(name, value);
  return line;
}

function svgText(className, x, y, text) {
  const element = makeSvg("text", className);
  place(element, x, y);
  element.textContent = text;
  return element;
}
