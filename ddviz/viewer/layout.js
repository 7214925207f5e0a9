// Where the nodes of a step stand: left to right by depth, siblings top to bottom in link order.
//
//   root ─ ·the ─ ·lamp ─ ·had      A first child stands on its parent's row, so the drafter's favourite path
//       │       └ ·light            is one straight line that reads like text. Other children start on the
//       └ ·a ─── ·lamp              first row that is free in every column of their own first-child line.
//
// In:  step view (step.py). Out: items with x, y, w, h in layout units, edges between them.

const [NODE_HEIGHT, DENSE_HEIGHT] = [24, 19];
const GROUP_GAPS = [0.3, 0.1]; // rows between children of different parents; the second where space is short
const NOTES_UP_TO = 24; // nodes; a small tree has room for target probabilities as numbers
const NOTE_WIDTH = 30;
const GAP_LEAST = 24; // between columns
const LABEL_FONT =
  '12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace';
const SIGN_WIDTH = 15; // a sign and a space before the label
const SIGNS = { root: "◆", accepted: "✓", rejected: "✗", unreached: "", bonus: "+" };
const BONUS = "bonus"; // stands for the index of the ghost node

const measureLabel = (() => {
  const widths = new Map();
  let context = null;
  return (label) => {
    if (!widths.has(label)) {
      context ??= document.createElement("canvas").getContext("2d");
      context.font = LABEL_FONT;
      if (widths.size > 5000) widths.clear();
      widths.set(label, context.measureText(label).width);
    }
    return widths.get(label);
  };
})();

// The longest beginning of a label that fits, with an ellipsis where it was cut.
function fitLabel(label, most) {
  if (measureLabel(label) <= most) return label;
  const characters = Array.from(label).slice(0, 64);
  while (characters.length > 1 && measureLabel(characters.join("") + "…") > most) characters.pop();
  return characters.join("") + "…";
}

function statusOf(node) {
  return node.i === 0 ? "root" : node.status;
}

// In words. A lesson may keep a node's verdict back (learn/bench.js): its drawing is that of an unreached one then.
function statusSaid(node, status) {
  return node.isUntold && status === "unreached" ? "not told yet" : status;
}

// folded: nodes whose subtree is hidden (tree_fold.js).
function layoutTree(step, width, height, folded = NOTHING_FOLDED) {
  const items = itemsOf(step, folded);
  if (!items.length) return { items, edges: [], byIndex: new Map(), width: 0, height: 0, depth: 0 };
  const hierarchy = d3.hierarchy(items[0], (item) => item.children);
  let rows = assignRows(hierarchy, GROUP_GAPS[0]);
  if (rows * (DENSE_HEIGHT + 4) > height) rows = assignRows(hierarchy, GROUP_GAPS[1]);
  const noted = step.nodes.length <= NOTES_UP_TO && total(columnWidths(hierarchy, NOTE_WIDTH)) <= width;
  if (noted) items.forEach(addNote);
  const columns = columnWidths(hierarchy, 0);
  // Spacing takes what room there is, in coarse grains so that successive steps keep the same one.
  const free = (width - total(columns)) / Math.max(columns.length - 1, 1) + GAP_LEAST;
  const gap = clamp(4 * Math.floor(free / 4), GAP_LEAST, 52);
  const nodeHeight = rows * (NODE_HEIGHT + 5) > height ? DENSE_HEIGHT : NODE_HEIGHT;
  const rowHeight = clamp(2 * Math.floor(height / rows / 2), nodeHeight + 4, nodeHeight + 16);
  const starts = columns.reduce((xs, w) => [...xs, xs[xs.length - 1] + w + gap], [0]);
  for (const item of items) {
    item.x = starts[item.depth];
    item.y = item.row * rowHeight;
    item.h = nodeHeight;
  }
  return {
    items,
    edges: edgesOf(items, gap),
    byIndex: new Map(items.map((item) => [item.index, item])),
    width: starts[columns.length] - gap,
    height: (rows - 1) * rowHeight + nodeHeight,
    depth: columns.length - 1,
  };
}

function itemsOf(step, folded) {
  const most = step.nodes.length > NOTES_UP_TO ? 72 : 104;
  const items = step.nodes.map((node) => newItem(node.i, node, statusOf(node), most));
  for (const item of items) {
    item.children = item.node.children.map((child) => items[child]);
    item.parent = items[item.node.parent] ?? null;
  }
  if (step.bonus && items.length) {
    const bonus = newItem(BONUS, step.bonus, "bonus", most);
    bonus.parent = items[step.bonus.parent] ?? items[0];
    bonus.parent.children.push(bonus);
    items.push(bonus);
  }
  return folded.size ? unfolded(step, items, folded) : items;
}

// The items that are in view; a folded one says what it hides.
function unfolded(step, items, folded) {
  const isHidden = new Set();
  for (const item of items) {
    const { parent } = item;
    if (parent && (isHidden.has(parent) || folded.has(parent.index))) isHidden.add(item);
  }
  for (const item of items) {
    if (isHidden.has(item) || !folded.has(item.index)) continue;
    Object.assign(item, { children: [], hidden: hangsBelow(step, item.index) });
    item.note = `▸ ${item.hidden.filter((node) => node !== BONUS).length}`;
    item.w += NOTE_WIDTH + 6;
  }
  return items.filter((item) => !isHidden.has(item));
}

function newItem(index, node, status, most) {
  const label = fitLabel(node.treeLabel ?? node.label, most);
  const sign = SIGNS[status];
  const w = Math.ceil(Math.max(measureLabel(label), 8) + (sign ? SIGN_WIDTH : 0) + 18);
  return { index, node, status, label, sign, w, note: "", children: [], parent: null, depth: 0, row: 0 };
}

// The target probability as a number beside the label: .52, <.01, 1.0
function addNote(item) {
  const prob = item.node.target_prob;
  if (prob === null || prob === undefined || item.hidden) return;
  item.note = prob >= 0.995 ? "1.0" : prob < 0.01 ? "<.01" : prob.toFixed(2).slice(1);
  item.w += NOTE_WIDTH;
}

// Pre-order, so that in every column nodes stand in traversal order and edges never cross. Returns the row count.
function assignRows(hierarchy, groupGap) {
  const free = []; // free[depth] = first row below everything placed in that column
  const parents = []; // parents[depth] = whose children stand lowest there
  let count = 0;
  hierarchy.eachBefore((place) => {
    const item = place.data;
    item.depth = place.depth;
    const isFirst = !place.parent || place.parent.children[0] === place;
    if (isFirst && place.parent) {
      item.row = place.parent.data.row;
    } else {
      const line = firstChildLine(place);
      item.row = line.reduce((row, { depth, parent }) => {
        const gap = depth in free && parents[depth] !== parent ? groupGap : 0;
        return Math.max(row, (free[depth] ?? 0) + gap);
      }, 0);
      for (const { depth, parent } of line) [free[depth], parents[depth]] = [item.row + 1, parent];
    }
    count = Math.max(count, item.row + 1);
  });
  return count;
}

function firstChildLine(place) {
  const line = [];
  for (let at = place; at; at = at.children?.[0]) line.push(at);
  return line;
}

function columnWidths(hierarchy, more) {
  const widths = [];
  hierarchy.each(({ depth, data }) => (widths[depth] = Math.max(widths[depth] ?? 0, data.w + more)));
  return widths;
}

// Of all columns with the least gaps between them.
function total(columns) {
  return columns.reduce((sum, w) => sum + w + GAP_LEAST, -GAP_LEAST);
}

function edgesOf(items, gap) {
  const [plain, path] = [[], []];
  for (const from of items) {
    from.children.forEach((to, k) => {
      const edge = { from, to, trunk: to.x - gap / 2, kind: "plain", after: k > 1 ? from.children[k - 1] : null };
      const onPath = to.status === "accepted" || to.status === "bonus";
      if (onPath) path.push({ ...edge, kind: to.status, after: null });
      if (to.status !== "bonus") plain.push(edge);
    });
  }
  return [...plain, ...path];
}

// Corner points of an edge: out of the parent, down the trunk between the columns, into the child. A plain edge
// begins where that of the sibling before it (`after`) has turned off, so that no line is drawn twice.
function edgePoints({ from, to, trunk, after }) {
  const [y0, y1] = [from.y + from.h / 2, to.y + to.h / 2];
  const [x0, x1] = [from.x + from.w, to.x];
  const radius = Math.min(7, Math.abs(y1 - y0) / 2, x1 - trunk);
  return { x0, y0, x1, y1, trunk, radius, start: after ? after.y + after.h / 2 - radius : null };
}

// What lies under a point given in layout units.
function itemAt(layout, x, y) {
  return layout.items.find((i) => x >= i.x - 3 && x <= i.x + i.w + 3 && y >= i.y - 3 && y <= i.y + i.h + 3) ?? null;
}
