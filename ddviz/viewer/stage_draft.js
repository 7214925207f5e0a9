// Stage 1: the drafter's candidates, a row for each position of the block, the likeliest first; those that the tree
// took carry its nodes.

const DRAFT_IN_VIEW = 10; // rows and ranks
const DRAFT_SHOWN = 24; // ranks beside each other; the search seldom looks further

function createDraftStage() {
  const box = make("div", "ddviz-in-draft");
  return {
    element: box,
    draw(step, { quick }) {
      box.replaceChildren(...draftParts(step, quick));
    },
  };
}

function draftParts(step, quick) {
  const { draft } = step;
  if (!draft) return [notRecorded(...noDraftSentences(step))];
  const width = Math.min(quick ? DRAFT_IN_VIEW : DRAFT_SHOWN, Math.max(0, ...draft.ids.map((row) => row.length)));
  const nodes = nodesByCandidate(step);
  const cap = step.build?.topk_cap || Infinity;
  const head = ["depth", ...Array.from({ length: width }, (_, rank) => rankHead(rank, cap))];
  const rows = draft.ids
    .slice(0, quick ? DRAFT_IN_VIEW : undefined)
    .map((_, d) => draftRow(step, d, width, cap, nodes));
  return [draftNote(step, width, cap), tableOf("ddviz-draft", "Draft candidates by depth and rank", head, rows)].filter(
    Boolean,
  );
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
  return says.length ? make("p", "ddviz-note-line", says.join(" ")) : null;
}

function rankHead(rank, cap) {
  return heading(rank >= cap ? "ddviz-beyond" : "", rank === 0 ? "rank 0" : String(rank), "col");
}

function draftRow(step, d, width, cap, nodes) {
  const row = append(make("tr"), heading("", String(d + 1), "row"));
  for (let rank = 0; rank < width; rank++) {
    row.append(draftCell(step, d, rank, rank >= cap, nodes.get(`${d + 1} ${rank}`) ?? []));
  }
  return row;
}

function draftCell(step, d, rank, isBeyond, nodes) {
  const token = step.draft.ids[d][rank];
  const cell = make("td", isBeyond ? "ddviz-beyond" : "");
  if (token === undefined) return cell;
  const logprob = step.draft.logprobs?.[d]?.[rank];
  append(cell, tokenText(labelOf(step, token), 10));
  if (typeof logprob === "number") {
    cell.style.setProperty("--p", `${100 * clamp(Math.exp(logprob), 0, 1)}%`);
    append(cell, make("span", "ddviz-cell-prob", shortProbability(Math.exp(logprob))));
  }
  if (!nodes.length) return cell;
  cell.classList.add("ddviz-in-tree");
  cell.dataset.node = nodes.join(" ");
  const taken = make("span", "ddviz-cell-nodes");
  for (const index of nodes.slice(0, 3)) {
    const status = statusOf(step.nodes[index]);
    append(taken, make("b", `ddviz-text-${status}`, nodeName(status, index)));
  }
  if (nodes.length > 3) append(taken, make("span", "ddviz-muted", `+${nodes.length - 3}`));
  cell.title = `in the tree as node ${nodes.join(", ")}`;
  return append(cell, taken);
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
