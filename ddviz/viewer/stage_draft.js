// Stage 1: the drafter's candidates, a row for each position of the block, the likeliest first; those that the tree
// took carry its nodes. The table stays from step to step, only what changed is written.

const DRAFT_IN_VIEW = 12; // rows and ranks
const DRAFT_SHOWN = 24; // ranks beside each other; the search seldom looks further

function createDraftStage() {
  const box = make("div", "ddviz-in-draft");
  let table = null; // of one shape: { element, shape, write }
  return {
    element: box,
    draw(step, { quick }) {
      const { draft } = step;
      if (!draft) return box.replaceChildren(notRecorded(...noDraftSentences(step)));
      const width = Math.min(DRAFT_SHOWN, Math.max(0, ...draft.ids.map((row) => row.length)));
      const cap = step.build?.topk_cap || Infinity;
      const shape = `${draft.ids.length} ${width} ${cap}`;
      if (table?.shape !== shape) table = newDraftTable(shape, draft.ids.length, width, cap);
      table.write(step, quick);
      const note = draftNote(step, width, cap);
      if (box.lastChild !== table.element || (note ?? "") !== (box.querySelector("p")?.textContent ?? "")) {
        box.replaceChildren(...(note ? [make("p", "ddviz-note-line", note)] : []), table.element);
      }
      return undefined;
    },
  };
}

function noDraftSentences({ algorithm, nodes }) {
  if (nodes.length === 1 && algorithm === "AR") return ["The target decodes alone here: there is no drafter."];
  return [
    "The drafter's candidates are not recorded for this step.",
    "Traces and pages of the light level leave them out; some algorithms have none per position.",
  ];
}

function draftNote({ draft, algorithm }, width, cap) {
  const says = [];
  if (!draft.logprobs) says.push("Only the candidates are recorded, not their probabilities.");
  if (algorithm === "DFLASH") says.push("Linear DFlash verifies one chain: the first choice at every position.");
  if (cap < width) says.push(`Ranks from ${cap} on are beyond topk_cap: the tree never takes them.`);
  return says.length ? says.join(" ") : null;
}

function newDraftTable(shape, rows, width, cap) {
  const beyond = (rank) => (rank >= cap ? "ddviz-beyond" : "");
  const head = [
    "depth",
    ...Array.from({ length: width }, (_, k) => heading(beyond(k), k ? String(k) : "rank 0", "col")),
  ];
  const cells = [];
  const lines = Array.from({ length: rows }, (_, d) => {
    const line = append(make("tr"), heading("", String(d + 1), "row"));
    cells.push(Array.from({ length: width }, (__, rank) => newDraftCell(line, beyond(rank))));
    return line;
  });

  function write(step, quick) {
    const nodes = nodesByCandidate(step);
    const most = quick ? DRAFT_IN_VIEW : undefined;
    cells.slice(0, most).forEach((line, d) => {
      line
        .slice(0, most)
        .forEach((cell, rank) => writeDraftCell(cell, step, d, rank, nodes.get(`${d + 1} ${rank}`) ?? []));
    });
  }

  return { shape, element: tableOf("ddviz-draft", "Draft candidates by depth and rank", head, lines), write };
}

function newDraftCell(line, className) {
  const cell = append(line, make("td", className)).lastChild;
  const [name, number, taken] = [make("bdi", "ddviz-token"), document.createTextNode(""), make("span")];
  taken.className = "ddviz-cell-nodes";
  append(cell, name, number);
  return { cell, name, number, taken, was: "" };
}

function writeDraftCell(drawn, step, d, rank, nodes) {
  const token = step.draft.ids[d][rank];
  const label = token === undefined ? "" : labelOf(step, token);
  const logprob = step.draft.logprobs?.[d]?.[rank];
  const prob = typeof logprob === "number" ? Math.exp(logprob) : null;
  const statuses = nodes.map((index) => statusOf(step.nodes[index]));
  const is = `${label} ${prob} ${nodes} ${statuses}`;
  if (is === drawn.was) return;
  const { cell, name, number, taken } = drawn;
  drawn.was = is;
  name.textContent = shorten(label, 10);
  name.title = shorten(label, 200);
  number.data = prob === null ? "" : shortProbability(prob);
  cell.style.backgroundSize = barSize(prob ?? 0);
  cell.classList.toggle("ddviz-in-tree", nodes.length > 0);
  cell.title = nodes.length ? `in the tree as node ${nodes.join(", ")}` : "";
  if (!nodes.length) {
    delete cell.dataset.node;
    return taken.remove();
  }
  cell.dataset.node = nodes.join(" ");
  const shown = nodes
    .slice(0, 3)
    .map((index, k) => make("b", `ddviz-text-${statuses[k]}`, nodeName(statuses[k], index)));
  if (nodes.length > 3) shown.push(make("span", "", `+${nodes.length - 3}`));
  taken.replaceChildren(...shown);
  return cell.append(taken);
}

// ".82", "<.01", "1.0": as short as a table of 240 needs.
function shortProbability(value) {
  return value >= 0.995 ? "1.0" : value < 0.005 ? "<.01" : value.toFixed(2).slice(1);
}

// "depth rank" -> nodes; where ranks were not recorded, by the token.
function nodesByCandidate(step) {
  const found = new Map();
  for (const { i, depth, rank, id } of step.nodes.slice(1)) {
    const key = `${depth} ${rank ?? step.draft.ids[depth - 1]?.indexOf(id)}`;
    found.set(key, [...(found.get(key) ?? []), i]);
  }
  return found;
}
