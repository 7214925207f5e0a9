// The address: which step and which node of it. Everything that chooses one comes here.
//
// Not here: reading the step (loader.js), going on by itself (player.js), drawing (panels.js).

function newAddress(viewer) {
  const { scope, state, panels } = viewer;
  const draw = newFrame(scope, () => drawStep(viewer));

  // byReader: it ends following and playing, and is told. place: a token of the step, clicked in the text.
  function goTo(i, { byReader = false, place = null } = {}) {
    if (!state.rows.length) return;
    const step = clamp(i, 0, newestStep(state));
    if (byReader) {
      viewer.player.stop();
      viewer.feed.forgetMisled();
      setFollow(isLive(state) && step === newestStep(state) && place === null);
    }
    if (step !== state.step) state.node = null;
    Object.assign(state, { step, place, tell: byReader, wanted: null });
    panels.goTo(step);
    viewer.loader.load();
  }

  // The reader chose a node of the step that is shown, though another may be on its way.
  function choose(index) {
    const { view } = state;
    if (!view) return;
    viewer.player.stop();
    viewer.feed.forgetMisled();
    setFollow(false);
    Object.assign(state, { step: view.i, node: nodeIn(view, index), place: null, tell: false, wanted: null });
    panels.goTo(view.i);
    viewer.onSelect?.(view.i, nodeShown(state));
    draw();
  }

  // A node asked for from outside; null, or one that the step lacks, is the default.
  function pick(index) {
    const isShown = state.view?.i === state.step && state.view !== null;
    if (isShown) sayIfLacking(state.view, index);
    Object.assign(state, { node: isShown ? nodeIn(state.view, index) : index, place: null });
    if (isShown) draw();
  }

  // A step (and node) asked for from outside, or as near as the trace has come; the rest when it gets there.
  function ask(step, node) {
    setFollow(false);
    state.wanted = { step, node };
    goToWanted();
    giveUp();
  }

  function goToWanted() {
    const { wanted } = state;
    if (!state.rows.length) return;
    goTo(wanted.step);
    if (wanted.step > newestStep(state)) state.wanted = wanted;
    else if (wanted.node !== null) pick(wanted.node);
  }

  // All steps are there, and the one that was asked for is not among them.
  function giveUp() {
    const { wanted, rows } = state;
    if (!wanted || !rows.length || isLive(state) || shareRead(state) !== null) return;
    state.wanted = null;
    const many = rows.length === 1 ? "one step" : `${rows.length} steps`;
    if (wanted.step < Infinity) viewer.feed.mislead(`There is no step ${wanted.step}: the trace has ${many}, from 0.`);
  }

  function sayIfLacking(view, index) {
    if (index === null || index === undefined || nodeIn(view, index) !== null) return;
    const what = index === BONUS ? "bonus" : `node ${index}`;
    viewer.feed.mislead(`Step ${state.rows[view.i]?.index ?? view.i} has no ${what}.`);
  }

  // There are new steps.
  function grew() {
    if (state.follow) goTo(newestStep(state));
    else if (state.wanted) goToWanted();
    else if (state.step === null) goTo(0);
  }

  function follow(on) {
    viewer.player.stop();
    setFollow(on);
    if (on) goTo(newestStep(state));
  }

  function setFollow(on) {
    if (on === state.follow) return;
    state.follow = on;
    viewer.feed.showStatus();
  }

  // A step view is there.
  function show(view) {
    const isFirst = state.view === null;
    state.view = view;
    if (isFirst) viewer.feed.showStatus(); // nobody waits any more
    if (view.i === state.step) {
      if (state.place !== null) state.node = nodeOfPlace(view, state.place);
      sayIfLacking(view, state.node);
      state.node = nodeIn(view, state.node);
      state.place = null;
      if (state.tell) viewer.onSelect?.(view.i, nodeShown(state));
      state.tell = false;
    }
    draw();
  }

  return { goTo, choose, pick, ask, giveUp, grew, follow, show, draw };
}

function drawStep({ state, panels, links, onDrawn }) {
  const { view } = state;
  if (!view) return;
  const began = performance.now();
  const node = nodeShown({ view, node: nodeIn(view, state.node) });
  const place = state.node === null ? null : placeOfNode(view, node);
  panels.draw({ view, node, place, follow: state.follow });
  state.drawMs = performance.now() - began;
  state.drawn = view.i;
  if (view.i === state.step) onDrawn?.(view.i, node);
  links.changed();
}
