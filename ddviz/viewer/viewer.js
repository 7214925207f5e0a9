// The whole viewer: mount(element, source, options) -> { update, destroy, state, focus }.
//
//   source   poll(since) -> Promise of poll_view, plus optionally status: { state, message, progress, error }
//            step(i)     -> Promise of step_view
//            batch(i)    -> Promise of all rows of a step's batch; optional (batch.js)
//            findings()  -> Promise of what the doctor found in the whole trace; optional (findings.js)
//   options  live        keep polling, follow the newest step (false: read what is there, once)
//            step, node  where to begin instead (default: the newest step live, else step 0)
//            folded      nodes of that step whose subtrees are hidden
//            stage       draft, build, compile, verify, commit; none: the overview
//            wrong       sentences about what of a link made no sense (link.js)
//            panels      names of toggle buttons that are down
//            onLink      ({ step, node, stage, panels }) after anything of it changed, to keep a link (link.js)
//            onOpen      ({ trace, step }): show another trace, a neighbour in the batch
//            onGo        (step) as soon as the reader, or playing, goes to another step
//            parting     { step, place } of the token that is to be marked (parting.js)
//            label       a letter in front of the trace's name
//            exporter    makes files (sheet_export.js)
//            onSelect    (step, node) after the reader chose one; node is an index or "bonus"
//            onDrawn     (step, node) after that step was drawn, with the node that is marked
//   update   { step, node, stage, follow, live, source }: anything of it. A new `source`, or `live`, polls afresh.
//
// What each part does, from the source to the screen; they find each other in `viewer`:
//
//   source ──poll.js──► feed.js ──► state.js ◄── address.js (which step, which node) ◄── keys.js, player.js
//      └────loader.js (a step in full)─┘ └──► panels.js ──► topbar, banner, scrubber, text, tree, detail
//
// assets() in html.py joins the files in one function, whose only result is `ddviz`.

function mount(element, source, options = {}) {
  const scope = newScope();
  const root = newRoot(element, scope);
  const { onSelect, onDrawn, onLink, onGo, onOpen, exporter, parting, label } = options;
  const told = { onSelect, onDrawn, onLink, onGo, onOpen };
  const viewer = { scope, root, state: newState(source, options), ...told, exporter, parting, label };
  viewer.commands = newCommands(viewer);
  viewer.panels = newPanels(viewer);
  viewer.loader = newLoader(viewer);
  viewer.address = newAddress(viewer);
  viewer.player = newPlayer(viewer);
  viewer.feed = newFeed(viewer);
  viewer.poller = newPoller(viewer);
  viewer.links = newLinkKeeper(viewer, options.panels);
  followKeys(viewer);
  watchTheme(scope, root, viewer.panels.theme);
  viewer.feed.showStatus();
  viewer.poller.poll();
  return {
    update: (change) => update(viewer, change),
    destroy: () => scope.close(),
    focus: () => root.focus({ preventScroll: true }),
    state: () => publicState(viewer.state),
  };
}

// Inside a shadow root: the page's styles stay outside, the viewer's inside.
function newRoot(element, scope) {
  const host = append(element, make("div", "ddviz-host")).lastChild;
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLESHEET);
  shadow.adoptedStyleSheets = [sheet];
  const root = append(shadow, make("div", "ddviz")).lastChild;
  root.tabIndex = -1;
  scope.onClose(() => host.remove());
  return root;
}

function update({ state, address, feed, poller, commands, links }, change = {}) {
  if ("source" in change) Object.assign(state, { source: change.source, key: undefined });
  if ("live" in change) state.live = Boolean(change.live);
  if (change.live || "source" in change) {
    if (change.source) state.end = null;
    poller.poll();
  }
  if (change.wrong) state.misled = [...change.wrong];
  if (change.folded && Number.isInteger(change.step)) {
    state.folded = { i: change.step, nodes: new Set(change.folded) };
  }
  if (Number.isInteger(change.step)) address.ask(change.step, change.node ?? null);
  else if ("node" in change) address.pick(change.node);
  if ("stage" in change) commands.stage(change.stage);
  if (change.panels) links.setPanels(change.panels);
  if ("follow" in change) address.follow(Boolean(change.follow));
  feed.showStatus();
}

function publicState({ step, node, stage, follow, rows, end, drawn, drawMs }) {
  return { step, node, stage, follow, steps: rows.length, end, drawn, drawMs };
}
