// What one viewer knows: what was read, what is chosen, what is shown. Data and questions about it; no DOM, no request.

function newState(source, { live = false, step, node, stage, folded, wrong }) {
  return {
    source,
    live: Boolean(live), // the source may grow
    stage: isStage(stage) ? stage : null, // which of the five is shown; null = the overview
    moment: null, // { step view, at } how far the stage was walked; null = to its end
    folded: { i: Number.isInteger(step) ? step : null, nodes: new Set(folded) }, // see tree_fold.js
    hovered: [], // nodes under the pointer or the focus
    misled: [...(wrong ?? [])], // sentences: what was asked for from outside and is not there
    wanted: Number.isInteger(step) ? { step, node: node ?? null } : null, // asked for before it was there
    ...nothingRead(),
  };
}

// The state before the first answer about a request.
function nothingRead() {
  return {
    // read
    key: undefined, // of the request
    rows: [], // compact rows of all steps; only ever grows
    total: 0, // steps that the source knows
    more: false, // it holds more than it has read itself
    end: null,
    status: null, // of the engine
    damage: null,
    dropped: [],
    problems: { source: null, step: null, end: null }, // sentences
    // chosen: the address
    step: null, // place in rows
    node: null, // index, "bonus", or null for the default of the step
    place: null, // token of the step that was clicked in the text; its node is known when the step is there
    follow: false, // go to every newest step
    playing: false,
    tell: false, // the reader chose: tell onSelect when the step is there
    // shown
    view: null, // step view; that of `step`, or the one before while `step` is on its way
    drawn: null, // place of the step that was drawn last
    drawMs: null, // what drawing the last step took, layout of the page not counted
  };
}

function isLive(state) {
  return state.live && !state.end;
}

// How much of a recorded trace has been read, 0 to 1; NaN where nobody knows how long it is, null where all is there.
function shareRead(state) {
  const { rows, total, more, damage } = state;
  if (isLive(state) || !rows.length || (!more && (rows.length >= total || damage))) return null;
  return more ? NaN : rows.length / total;
}

function newestStep(state) {
  return state.rows.length - 1;
}

// The node that is shown as selected.
function nodeShown({ view, node }) {
  return node ?? defaultNode(view);
}

// Where the decision fell: the last accepted node, whose distribution gave the bonus.
function defaultNode(view) {
  return view.path.length ? view.path[view.path.length - 1] : view.nodes.length ? 0 : null;
}

// A node's address in a step; null (the default) where the step lacks it.
function nodeIn(view, index) {
  if (index === BONUS) return view.bonus ? BONUS : null;
  return Number.isInteger(index) && view.nodes[index] ? index : null;
}

// Tokens of a step are its path without the root, then the bonus.
function nodeOfPlace(view, place) {
  return place < view.path.length - 1 ? view.path[place + 1] : BONUS;
}

function placeOfNode(view, index) {
  if (index === BONUS) return view.bonus?.emitted ? view.path.length - 1 : null;
  const place = view.path.indexOf(index) - 1;
  return place >= 0 ? place : null;
}
