// The batch view: all rows of the forward that this step was verified in, as the kernels' flat arrays had them.
//
//   A 0–16 │ B 17–33 │ C 34–50         a strip of the flat indices by owner: a letter, a colour, a kind of line
//   A  row 0 · quicksort · step 12     then a table per owner; a press on a neighbour opens its trace at that step
//
// In:  source.batch(i) -> Promise of the app's answer (app/batch.py). An exported page holds one trace and has no such
//      source: it shows its own row, and says that the others are in other files.
// Not here: one row in every detail (stage_compile.js).

const BATCH_CELLS = 6000; // of tables that are open from the start; the rest unfold on demand
const [OWNER_COLOURS, OWNER_LINES] = [6, 4]; // as in views.css
const BATCH_LINES = [
  ["local", (row, i) => i],
  ["flat", (row, i) => row.flat?.[i]],
  ["next_token", (row, i) => row.next_token?.[i]],
  ["next_sibling", (row, i) => row.next_sibling?.[i]],
  ["position", (row, i) => row.position?.[i]],
  ["slot", (row, i) => row.slot?.[i]],
];
const ALONE = "this page holds one trace; open the traces together in the app to see this row";

function createBatch(box, viewer) {
  const { scope, state } = viewer;
  const view = newView(box, viewer, {
    name: "batch",
    label: "Batch",
    says: "All rows of this step's batch, as the kernel saw them (B)",
    onShow: () => state.view && load(state.view),
  });
  const wrong = make("div", "ddviz-wrong");
  view.body.before(wrong);
  const flies = newFlight(scope, "batch");
  let [drawn, wanted] = [null, null]; // step views

  function draw({ view: step }) {
    if (!view.isOn() || step === wanted) return;
    if (flies(() => load(state.view))) wanted = null;
    else load(step);
  }

  async function load(step) {
    if (!step || step === drawn || !view.isOn()) return;
    wanted = step;
    const { source } = state;
    const answer = !step.batch || !source.batch ? ownBatch(step, viewer.name) : await source.batch(step.i).catch((error) => ({ error }));
    if (wanted !== step || scope.closed) return;
    drawn = step;
    keepFocus(view.body, () => show(step, answer));
  }

  function show(step, batch) {
    view.title.textContent = step.batch ? `Batch ${step.batch.id}` : "Batch";
    view.summary.textContent = step.batch ? batchSummary(step) : "";
    const problems = [...(batch?.clashes ?? []), ...(batch?.notes ?? [])];
    say(wrong, problems.length ? `≠ ${problems.slice(0, 3).join("; ")}${more(problems.length - 3)}.` : "");
    if (!batch) view.body.replaceChildren(notRecorded("The batch of this step is not recorded."));
    else if (batch.error) view.body.replaceChildren(notRecorded(`The batch can't be read (${messageOf(batch.error)}).`));
    else view.body.replaceChildren(batchStrip(batch, open), ...batchBlocks(batch, open));
  }

  // What opens a row's trace; null where there is nothing to open.
  function open(row) {
    return row.trace && viewer.onOpen ? () => viewer.onOpen({ trace: row.trace, step: row.i }) : null;
  }

  return {
    draw,
    begin: ({ header }) => (viewer.name = header?.name ?? viewer.name),
    clear() {
      [drawn, wanted] = [null, null];
      say(wrong, "");
      view.body.replaceChildren();
    },
  };
}

function batchSummary({ batch, index }) {
  const requests = batch.size === 1 ? "this request alone" : `${batch.size} requests`;
  return `step ${index} · ${requests} · T = ${batch.q_len} · ${batch.mode}`;
}

// What a step alone tells of its batch: its own row.
function ownBatch(step, name) {
  if (!step.batch) return null;
  const { row: own, size, q_len: width } = step.batch;
  const row = {
    row: own,
    name: name ?? "this trace",
    i: step.i,
    index: step.index,
    n: step.nodes.length,
    accept_len: step.accept_len,
    accept_index: step.accept.index,
    bonus: step.bonus?.label,
    nodes: step.nodes.map((node) => ({ label: node.label, status: statusOf(node) })),
    flat: step.arrays.index,
    next_token: step.arrays.next_token,
    next_sibling: step.arrays.next_sibling,
    position: step.arrays.positions,
    slot: step.arrays.slots,
  };
  const rows = Array.from({ length: Math.min(size, 1024) }, (_, k) => (k === own ? row : { row: k, missing: ALONE }));
  return { size, q_len: width, own, rows, clashes: [], notes: [] };
}

// A, B ... Z, AA, AB ...
function ownerLetter(row) {
  return row < 26 ? String.fromCharCode(65 + row) : ownerLetter(Math.floor(row / 26) - 1) + ownerLetter(row % 26);
}

function ownerClass(row) {
  return `ddviz-owner ddviz-owner-${row % OWNER_COLOURS} ddviz-owner-line-${row % OWNER_LINES}`;
}

function batchStrip({ rows, q_len: width, own }, open) {
  const strip = make("div", "ddviz-batch-strip");
  strip.setAttribute("role", "group");
  strip.setAttribute("aria-label", "Flat indices by owner");
  for (const row of rows) {
    const range = `${row.row * width}–${(row.row + 1) * width - 1}`;
    const isOwn = row.row === own;
    const says = `${ownerLetter(row.row)}: row ${row.row}, flat ${range}, ${isOwn ? "this trace" : (row.name ?? "no trace")}`;
    const go = open(row);
    const part = go ? button("", "", `Open ${says}`, go) : make("span");
    part.className = `ddviz-strip-part ${ownerClass(row.row)}${row.missing ? " ddviz-is-missing" : ""}`;
    part.title = says;
    if (isOwn) part.setAttribute("aria-current", "true");
    append(strip, append(part, make("b", "", ownerLetter(row.row)), ` ${range}`));
  }
  return strip;
}

function batchBlocks({ rows, q_len: width, own }, open) {
  let cells = 0;
  const blocks = rows.map((row) => {
    if (row.missing) return missingBlock(row);
    const isOpen = row.row === own || (cells += width * BATCH_LINES.length) <= BATCH_CELLS;
    return ownerBlock(row, width, row.row === own, isOpen, open(row));
  });
  const at = blocks.findIndex((_, k) => rows[k].row === own);
  return [...blocks.splice(at, 1), ...blocks]; // the own one first
}

function ownerHead(row, says) {
  const mark = append(make("span", `ddviz-owner-mark ${ownerClass(row.row)}`), make("b", "", ownerLetter(row.row)));
  return append(make("span", "ddviz-owner-head"), mark, `row ${row.row}`, ...says);
}

function missingBlock(row) {
  return append(make("section", "ddviz-owner-block ddviz-is-missing"), ownerHead(row, [make("span", "ddviz-muted", row.missing)]));
}

function ownerBlock(row, width, isOwn, isOpen, go) {
  const block = make("details", "ddviz-owner-block");
  const facts = `step ${row.index} · ${row.n} nodes · accept length ${row.accept_len} · accepted ${row.accept_index.join(" → ")}, then`;
  const says = [make("bdi", "ddviz-name", row.name), isOwn ? make("span", "ddviz-tag", "this trace") : null];
  says.push(make("span", "ddviz-muted", facts), tokenText(row.bonus ?? ABSENT));
  const head = append(make("summary"), ownerHead(row, says.filter(Boolean)));
  if (go) {
    const link = button("ddviz-small", "open", `Open ${row.name} at step ${row.index}`, (event) => {
      event.preventDefault(); // the block neither folds nor unfolds
      go();
    });
    append(head.lastChild, link);
  }
  const fill = () => block.childNodes.length === 1 && append(block, ownerTable(row, width, isOwn, go));
  block.addEventListener("toggle", () => block.open && fill());
  append(block, head);
  if (isOpen) fill();
  block.open = isOpen;
  return block;
}

function ownerTable(row, width, isOwn, go) {
  const head = append(make("tr"), heading("", "token", "row"));
  for (let i = 0; i < width; i++) head.append(ownerColumn(row, i, isOwn));
  const lines = BATCH_LINES.map(([name, valueOf]) => {
    const line = append(make("tr"), heading("", name, "row"));
    for (let i = 0; i < width; i++) line.append(ownerCell(row, name, i, valueOf(row, i), width));
    return line;
  });
  const table = make("table", `ddviz-table ddviz-arrays ${ownerClass(row.row)}`);
  table.setAttribute("aria-label", `Arrays of row ${row.row}, ${row.name}`);
  if (go) table.addEventListener("click", go);
  table.classList.toggle("ddviz-opens", Boolean(go));
  return append(reachable(make("div", "ddviz-owner-table"), `Arrays of row ${row.row}`), append(table, append(make("thead"), head), append(make("tbody"), ...lines)));
}

function ownerColumn(row, i, isOwn) {
  const node = row.nodes[i];
  if (!node) return heading("ddviz-pad", "pad", "col");
  const head = heading(`ddviz-text-${node.status}`, SIGNS[node.status], "col");
  if (isOwn) head.dataset.node = i; // lights up with the tree; nodes of others are no nodes of this step
  head.title = `${nodeName(node.status, i)} ${shorten(node.label, 100)} · ${node.status}`;
  return append(head, make("bdi", "ddviz-token", shorten(node.label, 5)));
}

function ownerCell(row, name, i, value, width) {
  const isAbsent = value === undefined || value === null;
  const cell = make("td", row.nodes[i] ? "" : "ddviz-pad", isAbsent ? ABSENT : String(value));
  if (name !== "flat" || isAbsent) {
    if (value === -1) cell.classList.add("ddviz-none");
    return cell;
  }
  const owner = Math.floor(value / width);
  cell.prepend(make("i", "ddviz-owner-letter", owner >= 0 ? ownerLetter(owner) : "?"));
  cell.classList.add("ddviz-flat-cell");
  if (owner === row.row) return cell;
  cell.classList.add("ddviz-wrong-cell");
  return append(cell, make("b", "ddviz-wrong-sign", "≠"));
}
