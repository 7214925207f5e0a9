// Stage 3: the arrays as the kernel sees them, a column per node, local beside flat; below in the same columns the
// mask, a row per node: who sees whom. Pad nodes (T > n) stand at the end. Arrows on the tree: tree_links.js.

const COLUMNS_IN_VIEW = 24;
const ARRAYS_SHOWN = 128; // columns beside each other; of a wider step those around the selected node
const ARRAY_ROWS = [
  ["local", "local index", (step, i) => i],
  ["flat", "retrieve_index: row × T + node", (step, i) => step.arrays.index?.[i]],
  ["next_token", "retrieve_next_token: the first child, −1 = none", (step, i) => step.arrays.next_token?.[i]],
  ["next_sibling", "retrieve_next_sibling: −1 = none", (step, i) => step.arrays.next_sibling?.[i]],
  ["position", "committed length + depth", (step, i) => step.arrays.positions?.[i]],
  ["slot", "KV slot", (step, i) => step.arrays.slots?.[i]],
];

function createCompileStage({ root, commands, state }) {
  const box = make("div", "ddviz-in-compile");
  const mask = createMask(root, commands);
  let columns = [0, 0];
  let scrolled = null;

  function draw(step, { node, quick = false }) {
    columns = columnsShown(step, node, quick ? COLUMNS_IN_VIEW : ARRAYS_SHOWN);
    const parts = [compileNote(step)];
    if (step.nodes.length && (hasArrays(step) || step.mask)) {
      const table = arraysTable(step, columns);
      parts.push(table);
      if (step.mask) parts.push(mask.element);
    }
    box.replaceChildren(...parts.filter(Boolean));
    mask.draw(step, columns, node);
    scrolled = null;
    if (!quick && state.node !== null) reveal(node); // one that the reader chose
  }

  // The node's column comes into view.
  function reveal(node) {
    const cell = box.querySelector(`thead [data-node="${node}"]`);
    if (!cell || scrolled === node) return;
    scrolled = node;
    const pane = box.closest(".ddviz-scroller");
    if (!pane) return;
    const [view, own] = [pane.getBoundingClientRect(), cell.getBoundingClientRect()];
    if (own.left < view.left + 110 || own.right > view.right) pane.scrollLeft += own.left - view.left - view.width / 2;
  }

  return {
    element: box,
    draw,
    select(step, node) {
      const [from, to] = columns;
      if (node !== BONUS && (node < from || node >= to)) return draw(step, { node });
      mask.select(node);
      return reveal(node);
    },
    hover: mask.hover,
    theme: mask.theme,
  };
}

function hasArrays({ arrays }) {
  return Object.values(arrays).some(Boolean);
}

// T of whatever is there.
function arrayWidth({ arrays, nodes, mask }) {
  return Math.max(nodes.length, mask?.length ?? 0, ...Object.values(arrays).map((values) => values?.length ?? 0));
}

function columnsShown(step, node, most) {
  const width = arrayWidth(step);
  if (width <= most) return [0, width];
  const at = Number.isInteger(node) ? node : 0;
  const from = clamp(at - most / 2, 0, width - most);
  return [from, from + most];
}

function compileNote(step) {
  if (!hasArrays(step) && !step.mask) {
    return notRecorded(
      "The kernels' arrays and the mask are not recorded for this step.",
      "Traces and pages of the light level leave them out; links then follow from the parents.",
    );
  }
  const says = [];
  const [width, n] = [arrayWidth(step), step.nodes.length];
  if (step.batch)
    says.push(
      `row ${step.batch.row} of ${step.batch.size}, T = ${step.batch.q_len}: flat = ${step.batch.row} × ${step.batch.q_len} + local`,
    );
  if (width > n) says.push(`${width - n} pad nodes`);
  if (width > ARRAYS_SHOWN) says.push(`${ARRAYS_SHOWN} of ${width} columns, those around the selected node`);
  if (!step.arrays.next_token) says.push("no retrieve links recorded");
  if (!step.mask) says.push("no mask recorded");
  return says.length ? make("p", "ddviz-note-line", says.join(" · ")) : null;
}

function arraysTable(step, [from, to]) {
  const line = append(make("tr"), heading("", "node", "row"));
  for (let i = from; i < to; i++) line.append(columnHead(step, i));
  const rows = ARRAY_ROWS.map(([name, says, valueOf]) => {
    const row = append(make("tr"), heading("", name, "row"));
    row.title = says;
    for (let i = from; i < to; i++) row.append(arrayCell(step, name, i, valueOf(step, i)));
    return row;
  });
  const table = make("table", "ddviz-table ddviz-arrays");
  table.setAttribute("aria-label", "The kernels' arrays, a column per node");
  return append(table, append(make("thead"), line), append(make("tbody"), ...rows));
}

function columnHead(step, i) {
  const node = step.nodes[i];
  if (!node) return heading("ddviz-pad", "pad", "col");
  const head = heading(`ddviz-text-${statusOf(node)}`, "", "col");
  head.dataset.node = i;
  head.title = `${nodeName(statusOf(node), i)} ${shorten(node.label, 100)}`;
  return append(head, make("bdi", "ddviz-token", shorten(node.label, 4)));
}

function arrayCell(step, name, i, value) {
  const cell = make("td", "", value === undefined || value === null ? ABSENT : String(value));
  if (!step.nodes[i]) cell.classList.add("ddviz-pad");
  else cell.dataset.node = i;
  if (value === -1) cell.classList.add("ddviz-none");
  const expected = expectedArray(step, name, i);
  if (value === undefined || value === null || expected === null || value === expected) return cell;
  cell.classList.add("ddviz-wrong-cell");
  cell.title = `expected ${expected}`;
  return append(cell, make("b", "ddviz-wrong-sign", "≠"));
}

// What the tree implies; null where it implies nothing.
function expectedArray(step, name, i) {
  const node = step.nodes[i];
  if (name === "flat") return step.batch ? step.batch.row * step.batch.q_len + i : null;
  if (!node) return null;
  if (name === "position") return step.prefix_len + node.depth;
  if (name === "next_token" || name === "next_sibling") return impliedLinks(step)[name][i];
  return null;
}

const impliedLinks = (() => {
  const known = new WeakMap(); // step view -> { next_token, next_sibling }
  return function of(step) {
    if (!known.has(step)) known.set(step, linksOfParents(step.nodes));
    return known.get(step);
  };
})();

// As compile_ddtree_retrieve links: siblings by index. Null for siblings in another order, which others may choose.
function linksOfParents(nodes) {
  const links = { next_token: nodes.map(() => -1), next_sibling: nodes.map(() => -1) };
  const children = nodes.map(() => []);
  for (const { i, parent } of nodes) children[parent]?.push(i);
  nodes.forEach(({ children: linked }, i) => {
    const isSame = children[i].every((child, k) => child === linked[k]);
    const isOrder = !isSame && children[i].every((child) => nodes[child].faults.length === 0);
    children[i].forEach((child, k) => {
      if (k === 0) links.next_token[i] = isOrder ? null : child;
      links.next_sibling[child] = isOrder ? null : (children[i][k + 1] ?? -1);
    });
  });
  return links;
}

function compileDifferences(step) {
  const differs = [];
  for (const [name, , valueOf] of ARRAY_ROWS) {
    for (let i = 0; i < step.nodes.length; i++) {
      const [value, expected] = [valueOf(step, i), expectedArray(step, name, i)];
      if (value !== undefined && value !== null && expected !== null && value !== expected) {
        differs.push(`${name}[${i}] is ${value}, the tree implies ${expected}`);
      }
    }
  }
  const odd = (step.mask ?? []).reduce((sum, row, i) => sum + oddBits(step, row, i), 0);
  if (odd) differs.push(`${odd} bit${odd === 1 ? " of the mask is" : "s of the mask are"} not what the tree implies`);
  return differs;
}

function oddBits(step, row, i) {
  const expected = seenBy(step, i);
  let odd = 0;
  for (let j = 0; j < row.length; j++) if ((row[j] === "1") !== expected.has(j)) odd++;
  return step.nodes[i] ? odd : 0; // what a pad node sees matters to nobody
}

// A node and those above it; a pad node itself.
function seenBy(step, i) {
  return step.nodes[i] ? ancestors(step, i) : new Set([i]);
}
