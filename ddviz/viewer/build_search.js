// Stage 2 once more, from the recorded draft: the twin of ddviz/tree/build.py, pop by pop, beside the recorded tree.
//
// Recorded log-probabilities have 5 significant digits. So where two offers are closer than that tells apart, the
// search takes the one that the engine took, and only what rounding can't explain is a difference.

const FLOAT32_ULP = 2 ** -23;

// draft { ids, logprobs } [B-1][K] -> { nodes, offers }, nodes in pop order as build_tree gives them.
//
//   offers   { parent, depth, rank, token, logprob, score, error, born, popped }: in the heap from after pop `born`
//            until it is popped as node `popped` (Infinity: never)
//   prefer   (node, waiting, best) -> the offer to take in place of the best, if any
function buildTree(draft, { root, budget, topkCap = 0, prefer = null }) {
  const [depthMost, k] = [draft.logprobs.length, draft.logprobs[0]?.length ?? 0];
  const width = Math.min(topkCap || k, k);
  const nodes = [{ token: root, parent: -1, depth: 0, rank: 0, score: 0, error: 0 }];
  const [offers, waiting] = [[], []];

  function offer(parent, depth, rank) {
    const logprob = draft.logprobs[depth - 1][rank] ?? -Infinity;
    const score = Math.fround(nodes[parent].score + Math.fround(logprob));
    const error = nodes[parent].error + roundingOf(logprob) + FLOAT32_ULP * Math.abs(score);
    const token = draft.ids[depth - 1]?.[rank] ?? null;
    const made = { parent, depth, rank, token, logprob, score, error, born: nodes.length - 1, popped: Infinity };
    offers.push(made);
    waiting.push(made);
  }

  if (width && depthMost) offer(0, 1, 0);
  while (waiting.length && nodes.length <= budget) {
    const best = waiting.reduce((a, b) => (comesBefore(b, a) ? b : a));
    const taken = prefer?.(nodes.length, waiting, best) ?? best;
    waiting.splice(waiting.indexOf(taken), 1);
    const { token, parent, depth, rank, score, error } = taken;
    taken.popped = nodes.length;
    nodes.push({ token, parent, depth, rank, score, error });
    if (rank + 1 < width) offer(parent, depth, rank + 1);
    if (depth < depthMost) offer(taken.popped, depth + 1, 0);
  }
  return { nodes, offers };
}

// The canonical order: score descending, depth ascending, parent index, rank.
function comesBefore(a, b) {
  if (a.score !== b.score) return a.score > b.score;
  return (a.depth - b.depth || a.parent - b.parent || a.rank - b.rank) < 0;
}

// What the heap holds after a pop, the next one first.
function frontierAt({ offers }, pops) {
  const held = offers.filter(({ born, popped }) => born <= pops && popped > pops);
  const next = (offer) => (offer.popped === pops + 1 ? 0 : 1); // a near tie that the engine took the other way
  return held.sort((a, b) => next(a) - next(b) || (comesBefore(a, b) ? -1 : 1));
}

// Half a unit of the fifth digit: how far a recorded log-probability may be off.
function roundingOf(value) {
  if (!value || !Number.isFinite(value)) return 0;
  return 0.5 * 10 ** (Math.floor(Math.log10(Math.abs(value))) - 4);
}

const searches = new WeakMap(); // step view -> search

// The search of a step and how the recorded tree differs: { nodes, offers, differs: [{ node, says }] }; null where
// the trace holds too little, or the tree was not built so.
function searchOf(step) {
  if (!searches.has(step)) searches.set(step, canSearch(step) ? searchAgain(step) : null);
  return searches.get(step);
}

function canSearch({ build, draft, nodes }) {
  return Boolean(build && draft?.logprobs?.length && nodes.length);
}

function searchAgain(step) {
  const rankOf = ({ rank, depth, id }) => rank ?? step.draft.ids[depth - 1]?.indexOf(id) ?? -1;
  let isSame = true; // so far, so that nodes have the same numbers in both
  const prefer = (node, waiting, best) => {
    const recorded = step.nodes[node];
    if (!isSame || !recorded) return null;
    const same = waiting.find((o) => o.parent === recorded.parent && o.rank === rankOf(recorded));
    isSame = Boolean(same) && same.score + same.error >= best.score - best.error;
    return isSame ? same : null;
  };
  const { budget, topk_cap: topkCap } = step.build;
  const found = buildTree(step.draft, { root: step.nodes[0].id, budget, topkCap, prefer });
  return { ...found, differs: differencesTo(found.nodes, step.nodes, rankOf) };
}

// Node by node until the two part; from there on by the ranks along the path, whatever the number.
function differencesTo(built, recorded, rankOf) {
  const differs = [];
  const parted = recorded.findIndex(
    (node, i) => i > 0 && !(built[i] && built[i].parent === node.parent && built[i].rank === rankOf(node)),
  );
  const same = parted < 0 ? recorded.length : parted;
  for (let i = 1; i < same; i++) differs.push(...valueDifferences(built[i], recorded[i]));
  if (parted >= 0) differs.push({ node: parted, says: partingSentence(built[parted], recorded[parted], rankOf) });
  const pathOf = (list, rank) => {
    const paths = [""];
    for (let i = 1; i < list.length; i++) paths.push(`${paths[list[i].parent] ?? "?"}.${rank(list[i])}`);
    return paths;
  };
  const known = new Set(pathOf(built, (node) => node.rank));
  pathOf(recorded, rankOf).forEach((path, i) => {
    if (i > same && !known.has(path)) differs.push({ node: i, says: `node ${i} is not in the tree of the search` });
  });
  if (built.length > recorded.length) {
    const missing = built.length - recorded.length;
    differs.push({ node: null, says: `the search goes on for ${missing} more nodes than the trace has` });
  }
  return differs;
}

function partingSentence(built, node, rankOf) {
  const has = `the trace has rank ${rankOf(node)} below node ${node.parent} as node ${node.i}`;
  if (!built) return `${has}, where the search has used up its budget or its offers`;
  return `${has}, the search pops rank ${built.rank} below node ${built.parent} (score ${precise(built.score, 6)})`;
}

function valueDifferences(built, node) {
  const differs = [];
  if (built.token !== node.id) {
    differs.push({ node: node.i, says: `node ${node.i} holds token ${node.id}, the draft has ${built.token} there` });
  }
  const slack = built.error + 2 * FLOAT32_ULP * Math.abs(built.score);
  if (node.score !== null && !(Math.abs(node.score - built.score) <= slack)) {
    const [own, recorded] = [precise(built.score, 6), precise(node.score, 6)];
    differs.push({ node: node.i, says: `node ${node.i} has score ${recorded}, by the draft it is ${own}` });
  }
  return differs;
}
