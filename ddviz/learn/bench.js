// The viewer beside a lesson's text: the same one as everywhere, less the parts that the lesson hides.

const HIDDEN_PARTS = {
  topbar: ".ddviz-topbar",
  scrubber: ".ddviz-scrubber",
  stages: ".ddviz-stagebar",
  tree: ".ddviz-tree-pane",
  text: ".ddviz-text-pane",
  numbers: ".ddviz-detail-pane",
  legend: ".ddviz-legend", // where no verdict is told
};
const BENCH_STYLESHEET = `
  :host { height: 100%; }
  .ddviz { height: 100% !important; }
  .ddviz-tool-line, .ddviz-views, .ddviz-tile:nth-child(n + 2) { display: none; }
  .ddviz-tree-pane .ddviz-tools > :is([data-toggle], :nth-child(3)) { display: none; }
  .ddviz-panes, .ddviz-panes.ddviz-staged {
    grid-template: none; grid-template-columns: repeat(2, minmax(0, 1fr)); grid-auto-rows: minmax(0, 2fr);
  }
  .ddviz:not(.ddviz-bare-tree) .ddviz-panes.ddviz-staged { grid-template-rows: minmax(0, 2fr) minmax(0, 3fr); }
  .ddviz-panes > .ddviz-pane { grid-area: auto; border-left: 0; border-top: 1px solid var(--ddviz-line); }
  .ddviz-panes > :is(.ddviz-tree-pane, .ddviz-stage-pane) { grid-column: 1 / -1; }
  .ddviz-panes > .ddviz-tree-pane { order: -2; }
  .ddviz-panes > .ddviz-stage-pane { order: -1; }
  .ddviz-bare-text .ddviz-detail-pane, .ddviz-bare-numbers .ddviz-text-pane { grid-column: 1 / -1 !important; }
  @container (min-width: 1000px) {
    .ddviz-stage-body > div, .ddviz-detail-pane .ddviz-scroller > *, .ddviz-text-pane .ddviz-scroller > * { zoom: 1.25; }
  }
  ${Object.entries(HIDDEN_PARTS)
    .map(([name, part]) => `.ddviz-bare-${name} ${part} { display: none; }`)
    .join("\n")}
`;

// hooks { onSelect(step, node), onDrawn(step, node), onGo(step) } -> what `mount` of the viewer returns
function mountBench(box, lesson, source, hooks, { blind, step, node, stage }) {
  const view = mount(box, numberedSource(blind ? blindSource(source, lesson) : source), {
    live: false,
    step,
    node: node ?? undefined,
    stage: stage ?? undefined,
    ...hooks,
  });
  const shadow = box.querySelector(".ddviz-host").shadowRoot;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(BENCH_STYLESHEET);
  shadow.adoptedStyleSheets = [...shadow.adoptedStyleSheets, sheet];
  const hidden = [...lesson.hide, ...(blind ? ["legend"] : [])];
  for (const name of hidden) shadow.querySelector(".ddviz").classList.add(`ddviz-bare-${name}`);
  return view;
}

// Texts name nodes by their numbers, so the tree shows them.
function numberedSource(source) {
  return { poll: (since) => source.poll(since), step: async (i) => numberedStep(await source.step(i)) };
}

function numberedStep(view) {
  return { ...view, nodes: view.nodes.map((node) => ({ ...node, treeLabel: `${node.i}: ${node.label}` })) };
}

// The trace up to the lesson's step, and of that nothing that the verdict decided; to a heap's popper no tree either.
function blindSource(source, { step: last, task }) {
  return {
    async poll(since) {
      const view = await source.poll(since);
      const known = view.steps.slice(0, Math.max(0, last + 1 - since));
      const steps = known.map((row) => (row.i === last ? blindRow(row) : row));
      return { ...view, key: `blind ${view.key}`, steps, total: last + 1, stats: null, end: null, tail: "" };
    },
    async step(i) {
      const view = await source.step(i);
      const shown = task === "pop" ? { ...view, nodes: [{ ...view.nodes[0], children: [] }] } : view;
      return i === last ? blindStep(shown) : view;
    },
  };
}

function blindRow(row) {
  return { ...row, accept_len: 0, emitted: [], top1: false, tie: false, tried: [], entropy: [] };
}

function blindStep(view) {
  const nodes = view.nodes.map((node) => ({ ...node, status: "unreached", isUntold: true, why: null, differs: null }));
  const accept = { index: view.accept.index.slice(0, 1), predicts: [] };
  return { ...view, nodes, accept, accept_len: "?", path: [0], bonus: null, exams: [], emitted: [], commit: null };
}
