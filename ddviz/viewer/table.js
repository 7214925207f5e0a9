// The same step as arrays: one row per node, as the kernels got them, and the attention mask beside it.
// What differs from what the tree implies (position, flat index, mask bits) is marked; why, the doctor says.

const [ROW_HEIGHT, MASK_MOST] = [22, 130]; // px; nodes up to which a mask is drawn
const COLUMNS = ["node", "token", "parent", "depth", "rank"];
COLUMNS.push("next_token", "next_sibling", "position", "slot", "flat");

function createTable(parent, { onSelect, palette }) {
  const scroller = newScroller("ddviz-table-box", "Arrays of the step");
  parent.append(scroller);
  let [drawn, rows, mask] = [null, [], null];

  scroller.addEventListener("click", (event) => {
    const row = event.target.closest("tbody tr");
    if (row) onSelect(Number(row.dataset.node));
  });

  function select(index) {
    for (const row of rows) {
      const isSelected = row.dataset.node === String(index);
      row.classList.toggle("ddviz-selected-row", isSelected);
      row.ariaCurrent = isSelected ? "true" : null;
      if (isSelected) keepInView(scroller, row, 2 * ROW_HEIGHT); // not below the head
    }
  }

  function repaint() {
    if (mask) paintMask(mask, drawn, palette());
  }

  return {
    element: scroller,
    draw(step, index) {
      if (drawn === step) return select(index);
      drawn = step;
      rows = step.nodes.map((node) => tableRow(step, node));
      const table = make("table", "ddviz-table");
      mask = maskCanvas(step);
      append(table, tableHead(mask), append(make("tbody"), ...rows));
      if (mask) {
        const cell = append(make("td", "ddviz-mask-cell"), mask);
        cell.rowSpan = rows.length;
        rows[0].append(cell);
      }
      scroller.replaceChildren(table);
      repaint();
      return select(index);
    },
    select,
    repaint,
    clear() {
      [drawn, rows, mask] = [null, [], null];
      scroller.replaceChildren();
    },
  };
}

function tableHead(mask) {
  const row = make("tr");
  for (const name of COLUMNS) append(row, heading("", name, "col"));
  if (mask) append(row, heading("", "mask: node 0, 1, 2 …", "col"));
  return append(make("thead"), row);
}

function tableRow(step, node) {
  const row = make("tr");
  const status = statusOf(node);
  row.dataset.node = node.i;
  const cell = (value, isOdd) => append(row, make("td", isOdd ? "ddviz-odd" : "", String(value ?? ABSENT)));
  append(row, heading(`ddviz-text-${status}`, `${SIGNS[status]} ${node.i}`.trim(), "row"));
  append(row, append(make("td"), make("bdi", "ddviz-token", shorten(node.label, 20))));
  for (const value of [node.i === 0 ? -1 : node.parent, node.depth, node.rank]) cell(value);
  for (const value of [node.next_token, node.next_sibling]) cell(value);
  cell(node.position, node.position !== null && node.position !== step.prefix_len + node.depth);
  cell(node.slot);
  cell(node.flat, node.flat !== null && step.batch && node.flat !== step.batch.row * step.batch.q_len + node.i);
  if (node.faults.length) row.title = node.faults.join("; ");
  return row;
}

function heading(className, text, scope) {
  return Object.assign(make("th", className, text), { scope });
}

function maskCanvas(step) {
  if (!step.mask || !step.nodes.length || step.mask.length > MASK_MOST) return null;
  const canvas = make("canvas", "ddviz-mask");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Attention mask: which nodes each node sees");
  canvas.style.width = `${maskCell(step) * step.mask.length}px`;
  canvas.style.height = `${ROW_HEIGHT * step.nodes.length}px`;
  return canvas;
}

function maskCell(step) {
  return clamp(Math.floor(420 / step.mask.length), 4, 10);
}

function paintMask(canvas, step, colours) {
  const cell = maskCell(step);
  const context = sharpContext(canvas, cell * step.mask.length, ROW_HEIGHT * step.nodes.length);
  step.nodes.forEach((node, y) => {
    const expected = ancestors(step, node.i);
    for (let x = 0; x < step.mask.length; x++) {
      const sees = step.mask[y]?.[x] === "1";
      const odd = sees !== expected.has(x);
      context.fillStyle = odd ? colours.warn : sees ? colours[statusColour(step.nodes[y])] : colours.line;
      context.globalAlpha = odd || sees ? 1 : 0.45;
      context.fillRect(x * cell, y * ROW_HEIGHT + 1, cell - 1, ROW_HEIGHT - 2);
    }
  });
}

function statusColour(node) {
  return { root: "ink", accepted: "accepted", rejected: "rejected", unreached: "faint" }[statusOf(node)];
}

// A node and those above it.
function ancestors(step, index) {
  const seen = new Set();
  for (let at = index; at >= 0 && !seen.has(at); at = step.nodes[at].parent) seen.add(at);
  return seen;
}
