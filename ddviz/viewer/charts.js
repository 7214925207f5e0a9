// The charts view: what all steps of the trace say together (charts_data.js), drawn by charts_draw.js. A press on a bar
// goes to a step of it; the text beside shows which.

const CHARTS_EVERY = 700; // ms between drawings while a trace grows

function createCharts(box, viewer) {
  const { scope, state, commands } = viewer;
  const view = newView(box, viewer, {
    name: "charts",
    label: "Charts",
    says: "Charts of all steps (C)",
    onShow: draw,
  });
  const grid = append(view.body, make("div", "ddviz-figures")).lastChild;
  let [figures, drawn] = [[], -1]; // drawn: how many steps

  function draw() {
    if (!view.isOn() || drawn === state.rows.length) return;
    drawn = state.rows.length;
    view.summary.textContent = `${drawn.toLocaleString("en")} steps · a press on a bar goes to a step of it`;
    const focused = grid.getRootNode().activeElement?.closest?.("[data-bar]");
    const [name, k] = [focused?.closest("[data-chart]")?.dataset.chart, Number(focused?.dataset.bar)];
    figures = chartsOf(state.rows).map((chart) => chartFigure(chart, goTo));
    grid.replaceChildren(...figures.map(({ figure }) => figure));
    mark(state.step);
    if (name) focusBar(Array.from(grid.querySelectorAll(`[data-chart="${name}"] [data-bar]`)), k);
  }

  function goTo(bar) {
    const i = nextOfBar(bar, state.step);
    if (i !== null) commands.goTo(i);
  }

  function mark(i) {
    if (view.isOn()) for (const { markStep: show } of figures) show(i);
  }

  return {
    rows: () => view.isOn() && (drawn > 0 ? scope.later("charts", CHARTS_EVERY, draw) : draw()),
    goTo: mark,
    clear() {
      [figures, drawn] = [[], -1];
      grid.replaceChildren();
    },
  };
}
