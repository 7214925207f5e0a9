// Mean accept length of recorded runs over budgets, a line for each temperature, at the cap that is set. The means are
// those of `ddviz whatif` (tasks.py), at some budgets and caps; for a cap between two of them the smaller stands.

const [RUNS_WIDTH, RUNS_HEIGHT] = [420, 170]; // of the drawing, in its own units
const RUNS_PLOT = { left: 34, right: 76, top: 12, bottom: 26 };

// null where there are no runs
function newRunsChart(parent, runs) {
  if (!runs.length) return null;
  const box = append(parent, make("figure", "ddviz-learn-runs")).lastChild;
  const [title, svg] = [make("figcaption", "ddviz-heading"), makeSvg("svg")];
  svg.setAttribute("viewBox", `0 0 ${RUNS_WIDTH} ${RUNS_HEIGHT}`);
  svg.setAttribute("role", "img");
  append(box, title, svg);
  const most = Math.max(...runs.flatMap(({ means }) => Object.values(means).flat()));
  const [first, last] = [runs[0].budgets[0], runs[0].budgets[runs[0].budgets.length - 1]];
  const x = (budget) =>
    RUNS_PLOT.left + (RUNS_WIDTH - RUNS_PLOT.left - RUNS_PLOT.right) * (Math.log(budget / first) / Math.log(last / first));
  const y = (mean) =>
    RUNS_HEIGHT - RUNS_PLOT.bottom - (RUNS_HEIGHT - RUNS_PLOT.top - RUNS_PLOT.bottom) * ((mean - 1) / (most - 1));

  function draw(budget, cap) {
    const known = capOfRuns(runs, cap);
    const below = known === cap ? "" : `, the nearest drawn below ${cap}`;
    title.textContent = `Mean accept length of whole runs, cap ${known}${below}`;
    const parts = [];
    for (let mean = 1; mean <= most; mean++) {
      parts.push(lineAt(RUNS_PLOT.left, y(mean), x(last), y(mean)), textAt(8, y(mean) + 4, String(mean)));
    }
    for (const one of runs[0].budgets) parts.push(textAt(x(one) - 4, RUNS_HEIGHT - 8, String(one)));
    parts.push(textAt(x(last) + 20, RUNS_HEIGHT - 8, "budget"));
    parts.push(lineAt(x(budget), RUNS_PLOT.top, x(budget), y(1), "ddviz-learn-now"));
    runs.forEach((run, k) => parts.push(...runParts(run, k, known)));
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `${title.textContent}: ${runs.map((run) => runSays(run, known)).join("; ")}`);
  }

  function runParts({ temperature, budgets, means }, k, cap) {
    const line = makeSvg("polyline", `ddviz-learn-run ddviz-learn-run-${k % 3}`);
    line.setAttribute("points", budgets.map((budget, i) => `${x(budget)},${y(means[cap][i])}`).join(" "));
    return [line, textAt(x(last) + 8, y(means[cap][budgets.length - 1]) + 4, `T = ${temperature}`)];
  }

  return { draw };
}

function capOfRuns([{ means }], cap) {
  return Math.max(...Object.keys(means).map(Number).filter((known) => known <= cap));
}

function runSays({ temperature, budgets, means }, cap) {
  const each = budgets.map((budget, i) => `${means[cap][i].toFixed(2)} at budget ${budget}`);
  return `temperature ${temperature}: ${each.join(", ")}`;
}

function lineAt(x1, y1, x2, y2, className = "ddviz-learn-rule") {
  const line = makeSvg("line", className);
  for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(name, value);
  return line;
}

function textAt(x, y, text) {
  const element = makeSvg("text");
  place(element, x, y);
  element.textContent = text;
  return element;
}
