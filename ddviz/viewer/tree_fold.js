// Folding: a node whose subtree is hidden says how many nodes it hides. What is folded belongs to one step, since nodes
// of another step are other nodes; a node that is chosen from anywhere unfolds what hides it.
//
// state.folded = { i, nodes }: place of the step, and the set of its folded nodes.

const NOTHING_FOLDED = new Set();

function foldedOf({ folded }, step) {
  return folded.i === step.i ? folded.nodes : NOTHING_FOLDED;
}

function foldCommands(viewer) {
  const { state } = viewer;

  // Folds or unfolds the selected node; false where nothing hangs below it.
  function toggle() {
    const { view } = state;
    const node = view && nodeShown(state);
    if (!view || !Number.isInteger(node) || !hangsBelow(view, node).length) return false;
    if (state.folded.i !== view.i) state.folded = { i: view.i, nodes: new Set() };
    const { nodes } = state.folded;
    if (!nodes.delete(node)) nodes.add(node);
    viewer.address.choose(node); // a default deep in the subtree would unfold it again
    return undefined;
  }

  function unfoldAll() {
    if (!state.view || !foldedOf(state, state.view).size) return false;
    state.folded = { i: null, nodes: new Set() };
    return viewer.address.draw();
  }

  return { fold: toggle, unfoldAll };
}

// Unfolds whatever hides a node.
function unfoldTo(folded, step, index) {
  const above = index === BONUS ? [...ancestors(step, step.bonus.parent)] : [...ancestors(step, index)].slice(1);
  for (const node of above) folded.delete(node);
}

// What a node hides when it is folded: nodes, and "bonus" at the end where the bonus hangs there.
function hangsBelow(step, index) {
  const below = [];
  const waiting = [...step.nodes[index].children];
  while (waiting.length) {
    const node = waiting.pop();
    below.push(node);
    waiting.push(...step.nodes[node].children);
  }
  const parent = step.bonus?.parent;
  return parent === index || below.includes(parent) ? [...below, BONUS] : below;
}

// "12 nodes", "12 nodes and the bonus".
function hiddenSaid(hidden) {
  const count = hidden.filter((node) => node !== BONUS).length;
  const nodes = count ? `${count} node${count === 1 ? "" : "s"}` : "";
  return [nodes, hidden.length > count ? "the bonus" : ""].filter(Boolean).join(" and ");
}
