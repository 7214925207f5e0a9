// Task `coin`: the coin of the root against the running sum of its children, and draws of the first token, both by
// the twin of ddviz/tree/accept.py (twin_accept.js).
//
// What is not among the recorded tokens of the root's row is drawn as one: "others". That leaves the others' law alone.

const COIN_STEPS = 1000; // of the slider
const COIN_SEED = 2302;
const BAR_FULL = 0.5; // probability of a bar's full length

function coinPiece({ lesson, answer, step: stepOf, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-coins");
  const { reject, draws: wanted } = lesson.wants;
  const goals = { coin: false, draws: false };
  stepOf(lesson.step).then(begin);

  function begin(view) {
    const law = firstTokenLaw(view);
    const bar = newCoinBar(view, law, offer);
    const chart = newDraws(law, wanted, (count, furthest) => {
      if (count < wanted || goals.draws) return;
      goals.draws = true;
      const off = (Math.ceil(1000 * furthest) / 1000).toFixed(3);
      told(`${count.toLocaleString("en")} draws: no bar is more than ${off} off its mark.`);
    });
    append(box, bar.element, chart.element);
    bar.show(view.nodes[0].coin);
  }

  function offer({ coin, taken, isRejected }) {
    answer.choice(`coin ${coin.toFixed(3)}`, () => {
      const status = taken === reject ? "accepted" : "never examined";
      if (!isRejected(reject)) return answer.wrong(`With this coin node ${reject} is ${status}.`);
      goals.coin = true;
      return told(`Coin ${coin.toFixed(3)} rejects node ${reject}.`);
    });
  }

  function told(says) {
    if (goals.coin && goals.draws) {
      answer.right(says);
      reveal();
      return;
    }
    const next = goals.coin ? `draw ${wanted.toLocaleString("en")} times` : `the coin that rejects node ${reject}`;
    answer.note(`✓ ${says} Now ${next}.`);
  }

  return { element: box };
}

// The first token of a step as a vocabulary of a few: { tree, row, names, nodes }; token k is names[k].
function firstTokenLaw(view) {
  const root = view.nodes[0];
  const children = root.children.map((i) => view.nodes[i]);
  const named = new Map(children.map((node) => [node.id, { label: node.label, prob: node.target_prob, node: node.i }]));
  for (const { id, label, prob } of root.top) if (!named.has(id)) named.set(id, { label, prob, node: null });
  const known = [...named.entries()].sort(([, a], [, b]) => b.prob - a.prob);
  const rest = Math.max(0, 1 - known.reduce((sum, [, { prob }]) => sum + prob, 0));
  const places = new Map(known.map(([id], k) => [id, k]));
  return {
    tree: {
      tokens: [known.length, ...children.map(({ id }) => places.get(id))],
      nextToken: [children.length ? 1 : -1, ...children.map(() => -1)],
      nextSibling: [-1, ...children.map((_, k) => (k + 1 < children.length ? k + 2 : -1))],
    },
    row: [...known.map(([, { prob }]) => prob), rest],
    names: [...known.map(([, { label }]) => label), "others"],
    nodes: [...known.map(([, { node }]) => node), null],
    children,
  };
}

// The first token that a step emits, and whether it came from the residual.
function drawFirst({ tree, row }, coin, finalCoin) {
  const rows = [row, ...tree.tokens.slice(1).map(() => row)];
  const { path, emitted } = samplePath(tree, rows, [coin], finalCoin, 2);
  return { token: emitted[0], isBonus: path.length === 1 };
}

function newCoinBar(view, { children }, onCoin) {
  const element = make("section", "ddviz-learn-coin");
  const slider = make("input", "ddviz-slider");
  Object.assign(slider, { type: "range", min: "0", max: String(COIN_STEPS - 1), step: "1" });
  slider.setAttribute("aria-label", "The coin of the root");
  const parts = make("div", "ddviz-learn-parts");
  const says = make("p", "ddviz-learn-line-says");
  const probs = children.map((node) => node.target_prob);
  append(element, make("h4", "ddviz-heading", "The coin of the root"), parts, slider, says);
  slider.addEventListener("input", () => show(Number(slider.value) / COIN_STEPS));

  function show(coin) {
    slider.value = String(Math.round(coin * COIN_STEPS));
    const { taken, sums } = examineChildren(probs, coin);
    const left = 1 - (sums[sums.length - 1] ?? 0);
    const isRejected = (node) => {
      const k = children.findIndex(({ i }) => i === node);
      return k >= 0 && (taken < 0 || k < taken);
    };
    parts.replaceChildren(
      ...children.map((node, k) => {
        const status = taken === k ? "accepted" : isRejected(node.i) ? "rejected" : "unreached";
        const title = `node ${node.i}: running sum ${sums[k].toFixed(4)}`;
        return partOf(`ddviz-coin-${status}`, node.target_prob, nodeName(status, node.i), title);
      }),
      taken < 0
        ? partOf("ddviz-coin-bonus", left, "+ bonus", "what all children leave")
        : partOf("", left, "residual", "what all children leave"),
    );
    const mark = append(parts, make("i", "ddviz-learn-mark")).lastChild;
    mark.style.left = `${100 * coin}%`;
    const first = () => `node ${children[taken].i} is the first whose running sum reaches it (${sums[taken].toFixed(4)})`;
    const outcome = taken < 0 ? "none is taken: the bonus comes from the residual" : first();
    says.textContent = `Coin ${coin.toFixed(3)}: ${outcome}.`;
    slider.setAttribute("aria-valuetext", says.textContent);
    onCoin({ coin, taken: taken < 0 ? null : children[taken].i, isRejected });
  }

  return { element, show };
}

function partOf(kind, share, text, title) {
  const part = make("span", `ddviz-learn-part ${kind}`.trim(), share > 0.05 ? text : "");
  part.style.width = `${100 * clamp(share, 0, 1)}%`;
  part.title = title;
  return part;
}

function newDraws(law, wanted, onDrawn) {
  const element = make("section", "ddviz-learn-draws");
  const counts = law.row.map(() => 0);
  const coins = newCoins(COIN_SEED);
  const [title, rows] = [make("h4", "ddviz-heading"), make("div", "ddviz-learn-bars")];
  const buttons = make("div", "ddviz-learn-buttons");
  let [total, bonuses] = [0, 0];
  for (const count of new Set([1, 100, wanted])) {
    const title = `Draw ${count} first tokens, each with new coins`;
    append(buttons, button("", `Draw ${count.toLocaleString("en")}`, title, () => draw(count)));
  }
  append(element, title, rows, buttons);

  function draw(count) {
    for (let k = 0; k < count; k++) {
      const { token, isBonus } = drawFirst(law, coins(), coins());
      counts[token] += 1;
      bonuses += Number(isBonus);
    }
    total += count;
    write();
    onDrawn(total, Math.max(...law.row.map((prob, k) => Math.abs(counts[k] / total - prob))));
  }

  function write() {
    const drawn = `First token of ${total.toLocaleString("en")} steps, ${bonuses.toLocaleString("en")} from the residual`;
    title.textContent = total ? drawn : "First token of the step";
    rows.replaceChildren(...law.row.map(lineOf));
  }

  function lineOf(prob, k) {
    const share = total ? counts[k] / total : 0;
    const bar = append(make("span", "ddviz-learn-bar"), make("i"), make("b"));
    bar.children[0].style.width = `${100 * Math.min(1, share / BAR_FULL)}%`;
    bar.children[1].style.left = `${100 * Math.min(1, prob / BAR_FULL)}%`;
    const name = append(make("span", "ddviz-learn-bar-name"), tokenText(law.names[k], 12));
    if (law.nodes[k] !== null) append(name, make("span", "ddviz-muted", ` node ${law.nodes[k]}`));
    const numbers = total ? `${share.toFixed(3)} / ${prob.toFixed(3)}` : prob.toFixed(3);
    return append(make("div", "ddviz-learn-bar-line"), name, bar, make("span", "ddviz-learn-bar-number", numbers));
  }

  write();
  return { element };
}
