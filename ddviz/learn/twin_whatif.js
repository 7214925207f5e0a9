// What-if of one step: the twin of `ask` in ddviz/analysis/whatif.py, over buildTree. test_twins.py holds it equal.

// draft { ids, logprobs } [B-1][K], text: the tokens that followed the root
// -> { nodes, path }: the tree of this budget and cap, and the nodes of it below the root that agree with the text
function treeAt(draft, root, text, budget, topkCap) {
  const { nodes } = buildTree(draft, { root, budget, topkCap });
  const path = [];
  let at = 0;
  for (const token of text) {
    const next = nodes.findIndex((node) => node.parent === at && node.token === token);
    if (next < 0) break;
    path.push(next);
    at = next;
  }
  return { nodes, path };
}

// The least budget whose tree has this accept length; null where none up to `most` has.
function smallestBudget(draft, root, text, reach, topkCap, most) {
  for (let budget = 1; budget <= most; budget++) {
    if (treeAt(draft, root, text, budget, topkCap).path.length + 1 >= reach) return budget;
  }
  return null;
}
