// The top bar: where the data comes from, what ran, and the running numbers.

function createTopbar(parent, { label }) {
  const bar = append(parent, make("header", "ddviz-topbar")).lastChild;
  const badge = make("span", "ddviz-badge");
  const [mark, word] = [make("span", "ddviz-badge-mark"), make("span")];
  const [name, facts] = [make("bdi", "ddviz-name"), make("div", "ddviz-facts")];
  const panel = make("div", "ddviz-numbers");
  const tiles = Object.fromEntries(
    [
      ["accept_length", "accept length"],
      ["tokens_per_s", "tokens/s"],
      ["step_ms", "ms/step"],
      ["steps", "steps"],
    ].map(([key, label]) => [key, newTile(panel, label)]),
  );
  if (label) append(bar, make("b", "ddviz-label-letter", label));
  append(bar, append(badge, mark, word), append(make("div", "ddviz-who"), name, facts), panel);

  function begin({ header }) {
    name.textContent = header?.name ?? "";
    name.title = header ? `${header.request_id} · ${header.created} · ${header.engine}` : "";
    facts.replaceChildren(...(header ? factsOf(header).map(newFact) : []));
    facts.title = Array.from(facts.children, (fact) => fact.textContent).join(" · "); // what a narrow bar cuts
  }

  function stats(numbers) {
    tiles.accept_length.textContent = numbers ? numbers.accept_length.toFixed(2) : ABSENT;
    tiles.tokens_per_s.textContent = numbers?.tokens_per_s ? numbers.tokens_per_s.toFixed(1) : ABSENT;
    tiles.step_ms.textContent = milliseconds(numbers?.step_ms);
    tiles.steps.textContent = numbers ? numbers.steps.toLocaleString("en") : ABSENT;
  }

  return {
    begin,
    stats,
    status({ badge: state, reading }) {
      const share = Math.floor(100 * reading);
      word.textContent = reading === null ? state.toUpperCase() : `READING${Number.isNaN(share) ? " …" : ` ${share}\u00a0%`}`;
      badge.className = `ddviz-badge ddviz-badge-${state}`;
    },
    clear() {
      begin({});
      stats(null);
    },
  };
}

function newTile(parent, label) {
  const value = make("b", "ddviz-tile-value", ABSENT);
  append(parent, append(make("div", "ddviz-tile"), value, make("span", "ddviz-tile-label", label)));
  return value;
}

function newFact([label, value]) {
  const fact = make("span", "ddviz-fact");
  if (label) append(fact, `${label} `);
  return append(fact, make("bdi", "", value));
}

function factsOf(header) {
  const facts = [["", header.algorithm]];
  if (header.budget !== null) facts.push(["budget", String(header.budget)]);
  if (header.topk_cap !== null) facts.push(["cap", header.topk_cap === 0 ? "none" : String(header.topk_cap)]);
  if (header.block_size !== null) facts.push(["block", String(header.block_size)]);
  facts.push(["temperature", header.temperature < 1e-6 ? "0 (greedy)" : String(header.temperature)]);
  if (header.top_k > 0) facts.push(["top-k", String(header.top_k)]);
  if (header.top_p < 1) facts.push(["top-p", String(header.top_p)]);
  if (header.threshold_single < 1 || header.threshold_acc < 1) {
    facts.push(["thresholds", `${header.threshold_single}, ${header.threshold_acc}`]);
  }
  facts.push(["target", header.target]);
  if (header.draft) facts.push(["draft", header.draft]);
  return facts;
}
