// Stage 3 once more: the twin of links.py and mask.py in ddviz/tree. tests/learn/test_twins.py holds it equal.

// parents [n], parents[0] = -1, parents[i] < i -> { next_token, next_sibling, position, mask }, mask[i][j]: i sees j.
function encodeTree(parents, prefixLen) {
  const n = parents.length;
  const next_token = Array(n).fill(-1);
  const next_sibling = Array(n).fill(-1);
  const lastChild = Array(n).fill(-1);
  const depths = Array(n).fill(0);
  const mask = parents.map((_, i) => parents.map((_, j) => Number(i === j)));
  for (let node = 1; node < n; node++) {
    const parent = parents[node];
    if (lastChild[parent] === -1) next_token[parent] = node;
    else next_sibling[lastChild[parent]] = node;
    lastChild[parent] = node;
    depths[node] = depths[parent] + 1;
    mask[parent].forEach((sees, j) => (mask[node][j] ||= sees));
  }
  return { next_token, next_sibling, position: depths.map((depth) => prefixLen + depth), mask };
}
