// Stage 4: left every node with what the target and the drafter gave it, and the decision; right, for the selected
// node, the target's distribution after it, raw and after temperature, top-k and top-p, beside the drafter's.

const NODES_SHOWN = 200; // rows; of a larger step those around the selected node
const NODES_IN_VIEW = 16;
const TOKENS_SHOWN = 12;

function createVerifyStage() {
  const box = make("div", "ddviz-in-verify ddviz-own-scroll");
  const columns = make("div", "ddviz-columns");
  const left = reachable(make("section"), "Nodes");
  const right = reachable(make("section"), "Distribution after the selected node");
  append(columns, left, right);
  let rows = [0, 0];

  function draw(step, { node, quick = false }) {
    if (!step.nodes.some((other) => other.top.length || other.target_prob !== null)) {
      box.replaceChildren(
        notRecorded(
          "The target's numbers are not recorded for this step.",
          "Traces and pages of the light level leave them out; the accepted path is on the tree.",
        ),
      );
      return;
    }
    rows = rowsShown(step, node, quick ? NODES_IN_VIEW : NODES_SHOWN);
    left.replaceChildren(make("h4", "ddviz-heading", "Nodes"), verifyTable(step, rows));
    if (columns.parentNode !== box) box.replaceChildren(columns);
    fill(step, node, !quick);
  }

  function select(step, node) {
    if (Number.isInteger(node) && (node < rows[0] || node >= rows[1])) return draw(step, { node });
    return fill(step, node, true);
  }

  function fill(step, node, isSeen) {
    const row = left.querySelector(`tr[data-node="${node}"]`);
    if (row && isSeen) keepInView(left, row, 48);
    right.replaceChildren(...distributionParts(step, node === BONUS ? step.bonus.parent : node));
  }

  return { element: box, draw, select };
}

function rowsShown({ nodes }, node, most) {
  const from = nodes.length <= most ? 0 : clamp((Number(node) || 0) - most / 2, 0, nodes.length - most);
  return [from, Math.min(nodes.length, from + most)];
}

function verifyTable(step, [from, to]) {
  const greedy = step.kernel === "greedy";
  const head = [
    "node",
    "token",
    "draft",
    "raw",
    greedy ? "argmax after" : "target",
    greedy ? "margin" : "coin",
    "entropy",
  ];
  const rows = step.nodes.slice(from, to).map((node) => {
    const row = make("tr", node.differs ? "ddviz-wrong-row" : "");
    row.dataset.node = node.i;
    if (node.differs) row.title = node.differs;
    const name = `${node.differs ? "≠ " : ""}${nodeName(statusOf(node), node.i)}`;
    append(row, heading(`ddviz-text-${statusOf(node)}`, name, "row"), append(make("td"), tokenText(node.label, 12)));
    append(row, probabilityCell(node.draft_prob, "draft"), probabilityCell(node.raw_prob, "raw"));
    if (greedy) append(row, append(make("td"), node.argmax ? tokenText(node.argmax.label, 10) : ABSENT));
    else append(row, probabilityCell(node.target_prob, "target"));
    for (const value of [greedy ? node.margin : node.coin, node.entropy])
      append(row, make("td", "", precise(value, 3)));
    return row;
  });
  return tableOf("ddviz-verify", "Target and draft probability of every node", head, rows);
}

function probabilityCell(value, kind) {
  const cell = make("td", `ddviz-bar-cell ddviz-bar-${kind}`, probability(value));
  cell.style.backgroundSize = barSize(value ?? 0);
  return cell;
}

// What may come after a node: the drafter's guess for that depth, the target's raw softmax, what acceptance used.
function distributionParts(step, index) {
  const node = step.nodes[index];
  if (!node) return [];
  const title = append(make("h4", "ddviz-heading"), "After ", nodeChip(step, index), " ", tokenText(node.label, 16));
  const kinds = distributionKinds(step, node);
  if (!kinds.length) return [title, notRecorded("No distribution is recorded after this node.")];
  const strongest = kinds[kinds.length - 1].probs;
  const tokens = [...new Set(kinds.toReversed().flatMap(({ probs }) => [...probs.keys()].slice(0, TOKENS_SHOWN - 3)))];
  const order = (token) => strongest.get(token) ?? -1;
  tokens.sort((a, b) => order(b) - order(a));
  const rows = tokens.slice(0, TOKENS_SHOWN).map((token) => distributionRow(step, node, token, kinds));
  return [
    title,
    tableOf(
      "ddviz-distribution",
      `Likely tokens after node ${index}`,
      ["token", ...kinds.map(({ name }) => name), ""],
      rows,
    ),
    make("p", "ddviz-note-line", distributionNote(step, node, kinds)),
  ];
}

function distributionKinds(step, node) {
  const kinds = [];
  const [ids, logprobs] = [step.draft?.ids[node.depth], step.draft?.logprobs?.[node.depth]];
  if (ids && logprobs)
    kinds.push({ name: "draft", probs: new Map(ids.map((id, k) => [id, Math.exp(logprobs[k] ?? -Infinity)])) });
  const top = new Map(node.top.map(({ id, prob }) => [id, prob]));
  if (node.raw_top) kinds.push({ name: "raw", probs: new Map(node.raw_top) });
  else if (top.size && node.top_kind === "raw") kinds.push({ name: "raw", probs: top });
  if (node.top_kind === "filtered") kinds.push({ name: "target", probs: top });
  const ofNode = { draft: "draft_prob", raw: "raw_prob", target: "target_prob" };
  for (const { name, probs } of kinds) {
    // a child's probability is recorded though it is not among the likeliest
    for (const child of node.children.map((i) => step.nodes[i])) {
      const prob = child[ofNode[name]];
      if (prob !== null && !probs.has(child.id)) probs.set(child.id, prob);
    }
  }
  return kinds;
}

function distributionRow(step, node, token, kinds) {
  const row = make("tr");
  const child = step.nodes[node.children.find((i) => step.nodes[i].id === token)];
  const isBonus = step.bonus?.parent === node.i && step.bonus.id === token;
  const label = node.top.find(({ id }) => id === token)?.label ?? labelOf(step, token);
  append(row, append(heading("", "", "row"), tokenText(label, 14)));
  for (const { name, probs } of kinds) {
    const cell = probabilityCell(probs.get(token) ?? null, name);
    if (!probs.has(token)) cell.title = "not among the recorded tokens";
    append(row, cell);
  }
  const stands = child ? child.i : isBonus ? BONUS : null;
  if (stands !== null) row.dataset.node = stands;
  return append(row, append(make("td"), stands === null ? null : nodeChip(step, stands)));
}

function distributionNote(step, node, kinds) {
  const { temperature, top_k: topK, top_p: topP } = step.sampling;
  const says = [];
  if (step.kernel === "greedy") says.push("greedy: the argmax decides, no filter is applied");
  else if (kinds.some(({ name }) => name === "target")) {
    const filters = [
      `temperature ${temperature}`,
      topK > 0 ? `top-k ${topK}` : null,
      topP < 1 ? `top-p ${topP}` : null,
    ];
    says.push(`target = raw after ${filters.filter(Boolean).join(", ")}`);
  } else says.push("after filters: not recorded");
  if (node.margin !== null) says.push(`margin of the logits ${precise(node.margin, 3)}`);
  if (!kinds.some(({ name }) => name === "draft")) {
    says.push(step.draft ? "the block ends here: no draft for the next position" : "draft not recorded");
  }
  if (step.nonfinite) says.push(`${step.nonfinite} logits of this step are NaN or infinite`);
  return says.join(" · ");
}

function verifyDifferences({ exams, nodes, bonus }) {
  return [...exams.flatMap((exam) => examDifferences(exam, nodes)), ...(bonus?.exam.differs ?? [])];
}
