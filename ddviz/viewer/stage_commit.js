// Stage 5: what remains of the step. The accepted path token by token (< and > walk it), the KV rows that move from
// the tree's slots to the front, the tokens that join the text, and the bonus that becomes the next root.

const SLOT_GAP = 46; // px between the two rows of slots
const [SLOTS_WIDE, SLOT_WIDTH, SLOT_NARROW] = [17, 41, 34]; // cells that have room as wide ones; px, as the CSS has them
const FREE_RUN = 3; // slots beside each other, of which none is kept, from which on one cell stands for all

function createCommitStage({ state }) {
  const box = make("div", "ddviz-in-commit");
  return {
    element: box,
    draw(step, { moment }) {
      if (!step.bonus) return box.replaceChildren(notRecorded("What this step commits is hidden until you answer."));
      return box.replaceChildren(
        commitText(step, moment, state.rows[step.i - 1]),
        slotsSection(step, moment),
        commitNumbers(step),
      );
    },
  };
}

// Tokens joining the text, and what comes next.
function commitText(step, moment, before) {
  const section = append(make("section"), make("h4", "ddviz-heading", "Text"));
  const line = make("div", "ddviz-join");
  const tail = (before?.emitted ?? []).map(({ text }) => text).join("");
  append(line, make("bdi", "ddviz-join-before", `…${Array.from(tail).slice(-24).join("")}`));
  const root = step.nodes[0];
  if (!before && root) append(line, joinChip(step, 0, root.label, true, false));
  step.path.slice(1).forEach((index, k) => {
    append(line, joinChip(step, index, step.nodes[index].label, moment > k, k >= step.emitted.length));
  });
  const { bonus } = step;
  const isOut = moment >= step.path.length;
  append(line, joinChip(step, BONUS, bonus.label, isOut, !bonus.emitted));
  append(line, make("span", "ddviz-muted", isOut ? nextRootSentence(step) : ""));
  return append(section, line);
}

function joinChip(step, index, label, isThere, isCut) {
  const status = index === BONUS ? "bonus" : statusOf(step.nodes[index]);
  const chip = make("span", `ddviz-joining ddviz-joining-${status}`);
  chip.dataset.node = index;
  chip.classList.toggle("ddviz-waits", !isThere);
  append(chip, `${SIGNS[status]} `.trimStart(), tokenText(label, 20));
  if (isCut) append(chip, make("span", "ddviz-muted", " cut"));
  if (isCut) chip.title = "not emitted: the output was cut before it";
  return chip;
}

function nextRootSentence({ bonus, prefix_len: prefix, accept_len: length, emitted }) {
  if (!bonus.emitted) return `→ the output ends here, after ${emitted.length} of ${length} tokens`;
  return `→ root of the next step, at position ${prefix + length}`;
}

// The tree's slots in a row, the committed ones below, and an arrow for every row of KV that moves.
function slotsSection(step, moment) {
  const section = append(make("section"), make("h4", "ddviz-heading", "KV slots"));
  const { commit, arrays } = step;
  if (!commit || !arrays.slots) {
    return append(section, notRecorded("Which KV rows moved is not recorded for this step."));
  }
  const moves = movesOf(step);
  const cells = slotCells(step, moves);
  const isNarrow = Math.max(cells.length, moves.length) > SLOTS_WIDE;
  const from = make("div", "ddviz-slots");
  from.setAttribute("role", "list");
  from.setAttribute("aria-label", "Slots of the tree");
  from.append(
    ...cells.map(([first, last]) =>
      first === last ? slotCell(step, first, arrays.slots[first], moment) : freeCell(step, first, last),
    ),
  );
  const to = make("div", "ddviz-slots");
  to.setAttribute("role", "list");
  to.setAttribute("aria-label", "Slots after the commit");
  moves.forEach((move, k) => to.append(landingCell(step, move, k < moment + 1 && moment > 0)));
  const moved = moves.filter(({ from, to }) => from !== to).length;
  const says = moved
    ? `${moved} of ${moves.length} rows move, so that the committed rows stand at the front; the others are free again`
    : `all ${moves.length} rows stand where they belong already: nothing is copied, the others are free again`;
  const arrows = moveArrows(moves, moment > 0 ? moment + 1 : 0, cells, isNarrow ? SLOT_NARROW : SLOT_WIDTH);
  const strip = make("div", `ddviz-slot-strip${isNarrow ? " ddviz-slots-narrow" : ""}`);
  if (isNarrow) reachable(strip, "KV slots before and after"); // perhaps wider than its place
  return append(section, append(strip, from, arrows, to), make("p", "ddviz-note-line", says));
}

// [[first, last]] nodes of each cell. In a large tree one cell stands for a run of slots that nobody keeps, so that
// the rows that move, which may come from anywhere, are seen together.
function slotCells({ nodes, path }, moves) {
  const kept = new Set([...path, ...moves.map(({ node }) => node)]);
  const cells = [];
  for (let i = 0; i < nodes.length; i++) {
    const last = cells[cells.length - 1];
    if (last && !kept.has(i) && !kept.has(last[0])) last[1] = i;
    else cells.push([i, i]);
  }
  const isLarge = nodes.length > SLOTS_WIDE;
  return cells.flatMap(([first, last]) => {
    if (isLarge && last - first + 1 >= FREE_RUN) return [[first, last]];
    return Array.from({ length: last - first + 1 }, (_, k) => [first + k, first + k]);
  });
}

// [{ from, to, node }]: slots, and the node whose slot it was, -1 = none of this step.
function movesOf({ commit, arrays, nodes }) {
  const slots = arrays.slots.slice(0, nodes.length);
  return commit.src_slots.map((from, k) => ({ from, to: commit.dst_slots[k] ?? null, node: slots.indexOf(from) }));
}

function slotCell(step, i, slot, moment) {
  const onPath = step.path.indexOf(i);
  const isTaken = onPath >= 0 && onPath <= moment;
  const cell = make("div", `ddviz-slot${onPath >= 0 ? " ddviz-slot-kept" : ""}${isTaken ? "" : " ddviz-waits"}`);
  cell.setAttribute("role", "listitem");
  cell.dataset.node = i;
  cell.title = `node ${i} ${shorten(step.nodes[i].label, 60)} in slot ${slot ?? ABSENT}`;
  return append(
    cell,
    make("b", `ddviz-text-${statusOf(step.nodes[i])}`, nodeName(statusOf(step.nodes[i]), i)),
    make("span", "", String(slot ?? ABSENT)),
  );
}

function freeCell(step, first, last) {
  const cell = make("div", "ddviz-slot ddviz-slot-free");
  const count = last - first + 1;
  cell.setAttribute("role", "listitem");
  cell.dataset.node = Array.from({ length: count }, (_, k) => first + k).join(" ");
  cell.title = `nodes ${first} to ${last}: ${count} slots, free again`;
  return append(cell, make("b", "", `${first}–${last}`), make("span", "", `${count} free`));
}

function landingCell(step, { from, to, node }, isThere) {
  const cell = make("div", `ddviz-slot ddviz-slot-kept${isThere ? "" : " ddviz-waits"}`);
  cell.setAttribute("role", "listitem");
  if (node >= 0) cell.dataset.node = node;
  cell.title = `slot ${from} goes to slot ${to}`;
  const name = node >= 0 ? nodeName(statusOf(step.nodes[node]), node) : "≠ ?";
  return append(
    cell,
    make("span", "", String(to ?? ABSENT)),
    make("b", node >= 0 ? `ddviz-text-${statusOf(step.nodes[node])}` : "", name),
  );
}

// Of the first `count` moves, between cells that are `wide` px each.
function moveArrows(moves, count, cells, wide) {
  const svg = makeSvg("svg", "ddviz-moves");
  svg.setAttribute("width", Math.max(cells.length, moves.length) * wide);
  svg.setAttribute("height", SLOT_GAP);
  svg.setAttribute("aria-hidden", "true");
  moves.slice(0, count).forEach(({ from, to, node }, k) => {
    if (node < 0) return;
    const place = cells.findIndex(([first]) => first === node); // what moves has a cell of its own
    const [x0, x1] = [(place + 0.5) * wide, (k + 0.5) * wide];
    const path = makeSvg("path", `ddviz-move${from === to ? " ddviz-move-stays" : ""}`);
    const [top, bottom, mid] = [2, SLOT_GAP - 3, SLOT_GAP / 2];
    path.setAttribute(
      "d",
      `M${x0} ${top}C${x0} ${mid} ${x1} ${mid} ${x1} ${bottom}M${x1 - 4} ${bottom - 6}L${x1} ${bottom}L${x1 + 4} ${bottom - 6}`,
    );
    path.dataset.node = node;
    svg.append(path);
  });
  return svg;
}

function commitNumbers(step) {
  const { commit, prefix_len: prefix } = step;
  const section = append(make("section"), make("h4", "ddviz-heading", "Lengths"));
  if (!commit)
    return append(section, notRecorded(`The step began at ${prefix} committed rows; what it left is not recorded.`));
  const cells = [
    ["committed before", prefix],
    ["accepted + root", step.path.length],
    ["committed after", commit.committed_len],
    ["reserved rows", commit.reserved_len],
    ["row width", commit.row_width],
    ["draft KV rows", commit.draft_kv_rows],
    ["draft KV positions", commit.draft_kv_positions?.length ? rangesOf(commit.draft_kv_positions) : null],
  ];
  const list = make("dl", "ddviz-grid ddviz-commit-grid");
  for (const [name, value] of cells) {
    append(
      list,
      append(make("div"), make("dt", "ddviz-tile-label", name), make("dd", "ddviz-value", String(value ?? ABSENT))),
    );
  }
  return append(section, list);
}

// 48, 49, 50, 53 -> "48–50, 53"
function rangesOf(numbers) {
  const ranges = [];
  for (const value of numbers) {
    const last = ranges[ranges.length - 1];
    if (last && value === last[1] + 1) last[1] = value;
    else ranges.push([value, value]);
  }
  return ranges.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ");
}

function commitDifferences(step) {
  const { commit, arrays, path, accept, emitted, nodes } = step;
  const differs = [];
  path.slice(1).forEach((index, k) => {
    const [token, said] = [nodes[index].id, accept.predicts[k]];
    if (said !== undefined && said !== token)
      differs.push(`token ${said} was emitted for node ${index}, which holds ${token}`);
  });
  emitted.forEach(({ id }, k) => {
    const said = accept.predicts[k];
    if (said !== undefined && said !== id) differs.push(`emitted[${k}] is ${id}, predicts has ${said}`);
  });
  if (!commit) return differs;
  const length = step.prefix_len + path.length;
  if (commit.committed_len !== length)
    differs.push(
      `committed length is ${commit.committed_len}, ${step.prefix_len} + ${path.length} nodes of the path make ${length}`,
    );
  if (arrays.slots) {
    path.forEach((index, k) => {
      const [taken, slot] = [commit.src_slots[k], arrays.slots[index]];
      if (taken !== slot)
        differs.push(`row ${k} is taken from slot ${taken ?? ABSENT}, node ${index} stands in slot ${slot ?? ABSENT}`);
    });
  }
  if (commit.dst_slots.length !== commit.src_slots.length)
    differs.push(`${commit.src_slots.length} rows leave, ${commit.dst_slots.length} arrive`);
  if (new Set(commit.dst_slots).size !== commit.dst_slots.length) differs.push("two rows go to one slot");
  return differs;
}
