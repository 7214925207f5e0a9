// Stage 2: the search pop by pop. Left what was popped, with the recorded score beside the one that the recorded
// draft gives; right the heap as it stands then, the next pop first.

const HEAP_SHOWN = 60; // offers
const POPS_IN_VIEW = 16; // rows of either list

function createBuildStage() {
  const box = make("div", "ddviz-in-build ddviz-own-scroll");
  const [says, columns] = [make("p", "ddviz-stage-says"), make("div", "ddviz-columns")];
  const left = reachable(make("section"), "Popped nodes");
  const right = reachable(make("section"), "Heap");
  append(columns, left, right);
  return {
    element: box,
    draw(step, { moment, quick }) {
      const search = searchOf(step);
      if (!search) return box.replaceChildren(notRecorded(...noSearchSentences(step)));
      if (columns.parentNode !== box) box.replaceChildren(says, columns);
      const parts = buildParts(step, search, moment, quick);
      for (const [place, held] of [[says, parts.says], [left, parts.popped], [right, parts.heap]]) place.replaceChildren(...held);
      const last = left.querySelector(".ddviz-pop-now");
      if (last && !quick) keepInView(left, last, 48);
      return undefined;
    },
  };
}

function noSearchSentences({ algorithm, build, nodes }) {
  if (nodes.length === 1 && algorithm === "AR") return ["The target decodes alone here: no tree is built."];
  if (algorithm === "DFLASH") {
    return ["Linear DFlash builds no tree: its chain is the drafter's first choice at every position."];
  }
  if (!build) return [`This tree was not built by a best-first search over one draft (${algorithm}).`];
  return [
    "The draft that the search needs is not recorded for this step.",
    "The nodes are numbered in the order in which they were popped.",
  ];
}

function buildParts(step, search, pops, quick) {
  const heap = frontierAt(search, pops);
  const best = heap[0]?.score ?? 0;
  const shown = heap.slice(0, quick ? POPS_IN_VIEW : HEAP_SHOWN);
  const lowest = Math.min(
    best,
    ...heap
      .slice(0, HEAP_SHOWN)
      .map(({ score }) => score)
      .filter(Number.isFinite),
  );
  const worse = heap.length - shown.length;
  return {
    says: popSentence(step, search, pops, heap),
    popped: [make("h4", "ddviz-heading", "Popped"), poppedTable(step, search, pops, quick)],
    heap: [
      make("h4", "ddviz-heading", `Heap: ${heap.length} offer${heap.length === 1 ? "" : "s"}`),
      heapTable(step, shown, lowest),
      ...(worse ? [make("p", "ddviz-note-line", `and ${worse} worse ones`)] : []),
    ],
  };
}

// What the last pop did.
function popSentence(step, search, pops, heap) {
  if (pops === 0) return ["The root is there, and the heap holds one offer: its first child."];
  const node = search.nodes[pops];
  const made = search.offers.filter(({ born }) => born === pops);
  const says = [
    `Pop ${pops}: `,
    make("b", "", `node ${pops}`),
    " ",
    tokenText(labelOf(step, node.token)),
    ` of score ${precise(node.score)}.`,
  ];
  made.forEach((offer, k) => {
    says.push(k ? " and " : " It offers ", offer.parent === pops ? "its first child " : "its next sibling ");
    says.push(tokenText(labelOf(step, offer.token)), ` (${precise(offer.score)})`);
  });
  says.push(made.length ? "." : " It offers nothing: no depth and no rank is left.");
  if (pops === search.nodes.length - 1) {
    const left = `${heap.length} offer${heap.length === 1 ? " is" : "s are"} thrown away`;
    says.push(
      pops >= step.build.budget ? ` The budget of ${step.build.budget} is used up; ${left}.` : ` No offer is left.`,
    );
  }
  return says;
}

function poppedTable(step, search, pops, quick) {
  const wrong = new Map(search.differs.map(({ node, says }) => [node, says]));
  const first = quick ? Math.max(0, pops + 1 - POPS_IN_VIEW) : 0;
  const rows = search.nodes.slice(first, pops + 1).map((node, k) => {
    const i = first + k;
    const recorded = step.nodes[i];
    const row = make("tr", i === pops ? "ddviz-pop-now" : "");
    if (recorded) row.dataset.node = i;
    if (wrong.has(i)) {
      row.classList.add("ddviz-wrong-row");
      row.title = wrong.get(i);
    }
    const name = heading("", `${wrong.has(i) ? "≠ " : ""}${i}`, "row");
    append(row, name, append(make("td"), tokenText(labelOf(step, node.token), 10)));
    for (const value of [node.parent, node.depth, node.rank]) append(row, make("td", "", String(value)));
    append(row, scoreCell(node.score), recordedCell(recorded, wrong.has(i)));
    return row;
  });
  return tableOf(
    "ddviz-popped",
    "Nodes in the order of their pops",
    ["node", "token", "parent", "depth", "rank", "score", "trace"],
    rows,
  );
}

// The trace's score where it differs, else that it is the same.
function recordedCell(recorded, isWrong) {
  if (!recorded || recorded.score === null) return make("td", "", ABSENT);
  const cell = isWrong ? scoreCell(recorded.score) : make("td", "ddviz-muted", "same");
  cell.title = `score in the trace: ${recorded.score}`;
  return cell;
}

function scoreCell(value) {
  const cell = make("td", "", Number.isFinite(value) ? precise(value) : ABSENT);
  cell.title = String(value ?? "not recorded");
  return cell;
}

function heapTable(step, offers, lowest) {
  const rows = offers.map((offer, k) => {
    const row = make("tr", k === 0 ? "ddviz-pop-next" : "");
    if (Number.isFinite(offer.popped) && step.nodes[offer.popped]) row.dataset.node = offer.popped;
    const kind = offer.rank === 0 ? "first child of" : `rank ${offer.rank} of`;
    const score = scoreCell(offer.score);
    score.classList.add("ddviz-bar-cell");
    score.style.backgroundSize = barSize(lowest < 0 ? 1 - offer.score / (1.25 * lowest) : 1);
    return append(
      row,
      heading("", k === 0 ? "▸ next" : String(k + 1), "row"),
      append(make("td"), tokenText(labelOf(step, offer.token), 10)),
      append(make("td"), `${kind} `, parentName(offer.parent)),
      make("td", "", probability(Math.exp(offer.logprob))),
      score,
    );
  });
  return tableOf("ddviz-heap", "Offers in the heap, best first", ["", "token", "offered as", "p", "score"], rows);
}

function parentName(index) {
  const chip = make("b", "", String(index));
  chip.dataset.node = index;
  return chip;
}
