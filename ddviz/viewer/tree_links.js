// Stage 3 on the tree: the recorded links as arrows, in place of the edges. A first child is reached from its parent,
// a next sibling from the one above it. A link that contradicts the tree is red and crossed.

function linkEdges(layout, step) {
  const edges = [];
  for (const item of layout.items) {
    if (item.index === BONUS) continue;
    for (const [kind, link] of [
      ["child", item.node.next_token],
      ["sibling", item.node.next_sibling],
    ]) {
      const to = link === null || link < 0 ? null : layout.byIndex.get(link);
      if (to) edges.push(newLink(kind, item, to, step));
    }
  }
  return edges;
}

function newLink(kind, from, to, step) {
  const parent = kind === "child" ? from.index : from.node.parent;
  const isWrong = to.node.parent !== parent || to === from || step.nodes[to.index].faults.length > 0;
  const path = kind === "child" ? childArrow(from, to) : siblingArrow(from, to);
  return { from, to, kind: `${kind}${isWrong ? " ddviz-edge-wrong" : ""}`, path, isWrong, ghost: null };
}

function childArrow(from, to) {
  const [x0, y0, x1, y1] = [from.x + from.w, from.y + from.h / 2, to.x - 1, to.y + to.h / 2];
  const mid = (x0 + x1) / 2;
  return `M${x0} ${y0}C${mid} ${y0} ${mid} ${y1} ${x1} ${y1}M${x1 - 6} ${y1 - 4}L${x1} ${y1}L${x1 - 6} ${y1 + 4}`;
}

// A bow in the gap left of the column, so that it is seen however close the rows stand.
function siblingArrow(from, to) {
  const [x, y0, y1] = [from.x, from.y + from.h / 2 + 4, to.y + to.h / 2 - 3];
  const bow = clamp(8 + Math.abs(y1 - y0) / 12, 9, 15);
  const tip = `M${x - 8} ${y1 - 2}L${x - 1} ${y1}L${x - 5} ${y1 - 7}`;
  return `M${x} ${y0}C${x - bow} ${y0} ${x - bow} ${y1} ${x - 1} ${y1}${tip}`;
}
