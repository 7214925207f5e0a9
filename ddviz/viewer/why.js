// Why a node was accepted, rejected or never examined, in numbers: the exam of its siblings (exam.py) taken again
// from the recorded numbers, and whether the engine decided the same.

function whySection(step, index, onSelect) {
  const exam = examOf(step, index);
  if (!exam) return null;
  const section = append(make("section", "ddviz-block ddviz-exam"), make("h4", "ddviz-heading", "Why"));
  append(section, examIntro(step, exam, index));
  if (exam.kernel === "sampled" && exam.known && exam.children.length) append(section, coinLine(step, exam, index));
  if (exam.children.length && exam.kernel !== "limit") append(section, examTable(step, exam, onSelect));
  if (index === BONUS) append(section, ...residualParts(step));
  return append(section, verdictLine(step, exam, index));
}

// Where it was decided: the exam of the last node of the accepted path above it.
function examOf({ exams, nodes, path, bonus, sampling }, index) {
  if (index === 0) return null;
  let at = index === BONUS ? bonus.parent : nodes[index].parent;
  while (at > 0 && !path.includes(at)) at = nodes[at].parent;
  const exam = exams.find(({ parent }) => parent === at) ?? null;
  const lacksCoin = exam?.kernel === "sampled" && exam.coin === null;
  return lacksCoin ? withSums(exam, nodes, sampling.threshold_acc) : exam;
}

// Where the coin alone is missing (a light page), the nodes' own probabilities still give the running sums.
function withSums(exam, nodes, acc) {
  let running = 0;
  const children = exam.children.map((child) => {
    const { target_prob, top_kind } = nodes[child.node];
    const prob = top_kind === "raw" ? null : target_prob; // what acceptance used is not recorded
    running = running === null || prob === null ? null : running + prob;
    return { ...child, prob, running, bound: running === null ? null : running / Math.max(acc, 1e-9) };
  });
  return { ...exam, children };
}

function examIntro(step, exam, index) {
  const { parent, kernel, coin, argmax, margin, children, known } = exam;
  const isBelow = Number.isInteger(index) && step.nodes[index].parent !== parent;
  const where = isBelow ? `The path left its branch at node ${parent}. ` : "";
  const says = (text) => make("p", "ddviz-exam-says", where + text);
  if (kernel === "limit")
    return says(`The path holds as many nodes as a block: no child of node ${parent} is examined.`);
  if (!children.length) return says(`Node ${parent} has no child in the tree.`);
  if (kernel === "greedy") {
    if (!argmax) return says("The target's argmax is not recorded here.");
    const by = margin === null ? "" : `, ${precise(margin, 3)} above the second logit`;
    return append(
      says(`The target's argmax after node ${parent} is `),
      tokenText(argmax.label, 24),
      ` (id ${argmax.id}${by}). The child that equals it is accepted.`,
    );
  }
  if (coin === null && children.every(({ running }) => running !== null))
    return says(`The coin of node ${parent} is not recorded: the decision below is the engine's, not taken again here.`);
  if (!known) return says("Coins or probabilities of this decision are not recorded, so it can't be taken again here.");
  const { threshold_single: single, threshold_acc: acc } = step.sampling;
  const by = acc < 1 ? `running sum / ${acc}` : "running sum";
  const or = single < 1 ? `, or whose own probability is at least ${single},` : "";
  return says(`Coin of node ${parent}: ${precise(coin)}. The first child whose ${by} reaches it${or} is accepted.`);
}

// [0, 1] cut into the siblings' probabilities, what is left, and the coin.
function coinLine(step, exam, index) {
  const acc = Math.max(step.sampling.threshold_acc, 1e-9);
  const line = make("div", "ddviz-coinline");
  line.setAttribute("role", "img");
  line.setAttribute("aria-label", `Coin ${precise(exam.coin)} on the running sum of the children's probabilities`);
  const bar = append(line, make("div", "ddviz-coinbar")).lastChild;
  let [sum, rest] = [0, 1];
  for (const child of exam.children) {
    const share = clamp(child.prob / acc, 0, rest);
    const part = make(
      "span",
      `ddviz-coinpart ddviz-coin-${child.verdict}${child.node === index ? " ddviz-coin-own" : ""}`,
    );
    part.style.width = `${100 * share}%`;
    part.dataset.node = child.node;
    part.title = `node ${child.node}: ${precise(child.prob)}`;
    if (share > 0.09) part.textContent = nodeName(statusOf(step.nodes[child.node]), child.node);
    bar.append(part);
    [sum, rest] = [sum + share, rest - share];
  }
  if (rest > 0.3) append(bar, make("span", "ddviz-coinrest", exam.took === null ? "left: the residual" : "left"));
  const coin = append(line, make("span", "ddviz-coin", "▲ coin")).lastChild;
  coin.style.left = coinPlace(exam.coin);
  if (exam.coin > 0.7) coin.classList.add("ddviz-coin-left");
  return line;
}

// Near an end the arrow stays whole.
function coinPlace(share) {
  return `clamp(5px, ${100 * clamp(share, 0, 1)}%, calc(100% - 5px))`;
}

function examTable(step, exam, onSelect) {
  const sampled = exam.kernel === "sampled";
  const isScaled = step.sampling.threshold_acc < 1;
  const head = [
    "child",
    "token",
    "p",
    ...(sampled ? ["sum", ...(isScaled ? ["/ acc"] : [])] : []),
    sampled ? "coin" : "verdict",
  ];
  const rows = exam.children.map((child) => {
    const node = step.nodes[child.node];
    const row = make("tr", child.differs ? "ddviz-wrong-row" : "");
    row.dataset.node = child.node;
    append(
      row,
      append(heading("", "", "row"), nodeLink(child.node, statusOf(node), onSelect)),
      append(make("td"), tokenText(node.label, 7)),
    );
    append(row, make("td", "", probability(child.prob)));
    if (sampled) append(row, make("td", "", probability(child.running)));
    if (sampled && isScaled) append(row, make("td", "", probability(child.bound)));
    return append(row, verdictCell(exam, child));
  });
  return tableOf("ddviz-exam-table", `Children of node ${exam.parent} in the order of the exam`, head, rows);
}

// "≤ accepted", "> rejected", "unreached"; where the engine decided otherwise, both.
function verdictCell(
  { coin, kernel },
  { verdict, engine, differs, by_coin: byCoin, by_single: bySingle, running, bound },
) {
  const words = { accepted: "accepted", rejected: "rejected", unreached: "unreached" };
  const cell = make("td", "", words[verdict ?? engine]);
  if (!verdict) {
    cell.title = "the engine's decision, not taken again here";
    return cell;
  }
  if (kernel === "sampled" && verdict !== "unreached") cell.prepend(byCoin ? "≤ " : bySingle ? "> but p " : "> ");
  if (kernel === "sampled") cell.title = `coin ${coin}, running sum ${running}, bound ${bound}`;
  return differs ? append(cell, make("b", "", ` ≠ engine: ${words[engine]}`)) : cell;
}

// The bonus: what the refused children left, and where the final coin fell in it.
function residualParts(step) {
  const { bonus } = step;
  const { refused, expected, drawn, low, high } = bonus.exam;
  if (step.kernel === "greedy")
    return [make("p", "ddviz-exam-says", "None is left, so the argmax itself is emitted: the bonus.")];
  if (bonus.residual_sum === null || drawn === undefined)
    return [make("p", "ddviz-exam-says", "How the bonus was drawn is not recorded.")];
  const parts = [];
  const minus = refused.map((node) => probability(step.nodes[node].target_prob)).join(" − ");
  const sum = expected === null ? "" : ` = ${precise(expected)}`;
  const list = facts([
    ["residual", `1${minus ? ` − ${minus}` : ""}${sum}, recorded ${precise(bonus.residual_sum)}`],
    ["final coin", `${precise(bonus.final_coin)} × ${precise(bonus.residual_sum)} = ${precise(drawn)}`],
    ["bonus's part", low === null ? null : `${precise(low)} to ${precise(high)}`],
  ]);
  parts.push(make("p", "ddviz-exam-says", "No child was taken: the bonus is drawn from what they left."), list);
  if (low !== null && bonus.residual_sum > 0) parts.push(residualLine(bonus, drawn, low, high));
  return parts;
}

function residualLine({ residual_sum: total }, drawn, low, high) {
  const line = make("div", "ddviz-coinline");
  line.setAttribute("role", "img");
  line.setAttribute(
    "aria-label",
    `The final coin falls at ${precise(drawn / total)} of the residual, the bonus's part is ${precise(low / total)} to ${precise(high / total)}`,
  );
  const bar = append(line, make("div", "ddviz-coinbar")).lastChild;
  const part = append(bar, make("span", "ddviz-coinpart ddviz-coin-bonus")).lastChild;
  part.style.marginLeft = `${100 * clamp(low / total, 0, 1)}%`;
  part.style.width = `${100 * clamp((high - low) / total, 0.006, 1)}%`;
  part.dataset.node = BONUS;
  const coin = append(line, make("span", "ddviz-coin", "▲ final coin")).lastChild;
  coin.style.left = coinPlace(drawn / total);
  if (drawn / total > 0.6) coin.classList.add("ddviz-coin-left");
  return line;
}

// What the recorded numbers contradict: which child was taken, or else the verdict on single children.
function examDifferences({ differs, children }, nodes) {
  return differs ? [differs] : children.filter((child) => child.differs).map(({ node }) => nodes[node].differs);
}

// Whether the engine decided as the numbers say.
function verdictLine(step, exam, index) {
  const differs = [...examDifferences(exam, step.nodes), ...(index === BONUS ? step.bonus.exam.differs : [])];
  if (differs.length)
    return append(make("div", "ddviz-wrong"), ...differs.map((text) => make("p", "", `≠ ${sentence(text)}`)));
  if (exam.kernel === "limit" || !(exam.known || !exam.children.length)) return null;
  if (!exam.children.length && index !== BONUS) return null;
  return make("p", "ddviz-same", "✓ Taken again from the recorded numbers: the engine decided the same.");
}
