// The panels, in the order in which they stand and are told things. A new panel is one line here.
//
// create(parent, viewer) returns any of these methods:
//
//   clear()                       another request: forget everything
//   begin(poll view)              header, prompt and first token; again while there is no step yet
//   rows(fresh, all)              compact rows of new steps
//   stats(stats)                  running numbers
//   end(sentence, tail)           the output is complete
//   status(situationOf(state))       live or not, what went wrong
//   goTo(i)                       a step was chosen; its view may be on its way
//   stage()                       another stage was chosen, or none
//   hover(nodes)                  nodes under the pointer or the focus, of which everything else lights up
//   draw({view, node, place, follow})  a step view, the selected node, its token in the text
//   theme()                       other colours
//
// They do through `viewer.commands` what the reader asks for.

const BARS = { topbar: createTopbar, banner: createBanner, scrubber: createScrubber, stageBar: createStageBar };
const PANES = {
  text: createText, // first: it asks where things stand
  findings: createFindings,
  parting: createParting,
  tree: createTree,
  stages: createStages,
  detail: createDetail,
  charts: createCharts,
  batch: createBatch,
  highlight: createHighlight, // last: it marks what the others drew
};
const TOLD = ["clear", "begin", "rows", "stats", "end", "status", "goTo", "stage", "hover", "draw", "theme"];

const ASIDE = 120; // px that a key moves what is wider than its place
const SHEETS = { find: createFind, go: createGo, exports: createExport, keys: createKeySheet };

function newPanels(viewer) {
  const panels = {};
  for (const [name, create] of Object.entries(BARS)) panels[name] = create(viewer.root, viewer);
  const box = append(viewer.root, make("div", "ddviz-panes")).lastChild;
  for (const [name, create] of Object.entries(PANES)) panels[name] = create(box, viewer);
  panels.sheets = Object.fromEntries(
    Object.entries(SHEETS).map(([name, create]) => [name, create(viewer.root, viewer)]),
  );
  const all = Object.values(panels);
  for (const what of TOLD) {
    panels[what] = (...words) => {
      for (const panel of all) panel[what]?.(...words);
    };
  }
  return panels;
}

// What the reader can ask for, by a button, a click or a key.
function newCommands(viewer) {
  const byReader = true;
  const goTo = (i, place = null) => {
    viewer.address.goTo(i, { byReader, place });
    viewer.onGo?.(viewer.state.step);
  };
  const { state } = viewer;
  // While a recorded trace is being read, the last step there is, and on to the very last when it comes.
  const goToLast = () => {
    goTo(newestStep(state));
    if (shareRead(state) !== null) state.wanted = { step: Infinity, node: null };
  };
  return {
    goTo, // a step, and perhaps a token of it
    goBy: (steps) => goTo((state.step ?? 0) + steps),
    goToLast,
    choose: (node) => viewer.address.choose(node),
    follow: () => isLive(state) && viewer.address.follow(!state.follow),
    play: () => !isLive(state) && viewer.player.toggle(),
    speed: (stepsPerSecond) => viewer.player.setSpeed(stepsPerSecond),
    jump: (kind, way) => jumpCommand(viewer)(kind, way),
    sheet: (name) => viewer.panels.sheets[name].open?.(),
    finding: (way) => viewer.panels.findings.go(way),
    aside(target, way) {
      if (viewer.panels.tree.hasFocus(target)) return viewer.panels.tree.commands.walk(way < 0 ? "parent" : "child");
      return wideBox(target, viewer.root).scrollBy({ left: way * ASIDE, behavior: "instant" });
    },
    focusTree: () => viewer.panels.tree.focus(),
    ...stageCommands(viewer),
    ...foldCommands(viewer),
    toggle: toggleCommand(viewer), // a panel, by the name of its button
    tree: () => viewer.panels.tree.commands, // moves in the tree and of its camera
  };
}

// Sentences about what went wrong, above everything.
function createBanner(parent) {
  const banner = append(parent, make("div", "ddviz-banner")).lastChild;
  banner.setAttribute("role", "status");
  banner.hidden = true;
  return { status: ({ sentence }) => say(banner, sentence) };
}
