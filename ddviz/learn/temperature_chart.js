// Mean accept length of recorded runs, had their steps been verified at other temperatures: a band for each run, between
// the bounds that its recorded target probabilities leave (temperature.py).

// null where no run has them; draw(k): mark the k-th temperature; says(k): it in words
function newTemperatureChart(parent, runs) {
  const known = runs.filter(({ lengths }) => lengths);
  if (!known.length) return null;
  const box = append(parent, make("figure", "ddviz-learn-runs")).lastChild;
  const svg = makeSvg("svg");
  svg.setAttribute("viewBox", `0 0 ${RUNS_WIDTH} ${RUNS_HEIGHT}`);
  svg.setAttribute("role", "img");
  append(box, make("figcaption", "ddviz-heading", "Recomputed for other temperatures"), svg);
  const { temperatures } = known[0];
  const most = Math.max(...known.flatMap(({ lengths }) => lengths.map(([, high]) => high)));
  const [left, right] = [RUNS_PLOT.left, RUNS_WIDTH - RUNS_PLOT.right];
  const foot = RUNS_HEIGHT - RUNS_PLOT.bottom;
  const x = (k) => left + ((right - left) * k) / (temperatures.length - 1);
  const y = (mean) => foot - (foot - RUNS_PLOT.top) * ((mean - 1) / (most - 1));

  function draw(k) {
    const parts = [];
    for (let mean = 1; mean <= most; mean++) parts.push(lineAt(left, y(mean), right, y(mean)), textAt(8, y(mean) + 4, String(mean)));
    temperatures.forEach((one, i) => i % 5 === 0 && parts.push(textAt(x(i) - 8, RUNS_HEIGHT - 8, one.toFixed(1))));
    parts.push(textAt(right + 20, RUNS_HEIGHT - 8, "temp."), lineAt(x(k), RUNS_PLOT.top, x(k), foot, "ddviz-learn-now"));
    known.forEach((run, i) => parts.push(...bandParts(run, i)));
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", known.map((run) => temperatures.map((_, i) => saysOf(run, i)).join("; ")).join(". "));
  }

  function bandParts({ temperature, lengths }, i) {
    const band = makeSvg("polygon", `ddviz-learn-run ddviz-learn-band ddviz-learn-run-${i % 3}`);
    const points = [...lengths.map(([low], k) => [x(k), y(low)]), ...lengths.map(([, high], k) => [x(k), y(high)]).reverse()];
    band.setAttribute("points", points.map((point) => point.join(",")).join(" "));
    const end = lengths[lengths.length - 1];
    return [band, textAt(right + 8, y(end[0]) + 4, `of T = ${temperature}`)];
  }

  function saysOf({ temperature, lengths }, k) {
    const [low, high] = lengths[k].map((length) => length.toFixed(2));
    const value = low === high ? low : `${low} to ${high}`;
    return `${value} at temperature ${temperatures[k]}, at the steps recorded at ${temperature}`;
  }

  return {
    draw,
    last: temperatures.length - 1,
    first: Math.max(0, temperatures.indexOf(known[0].temperature)),
    valueOf: (k) => temperatures[k],
    says: (k) => `Mean accept length ${known.map((run) => saysOf(run, k)).join("; ")}.`,
  };
}
