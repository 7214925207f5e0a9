// The detail panel: every number of the selected node, the target's top tokens after it, the step's stage times.

const STAGE_ORDER = ["draft", "build", "compile", "verify", "commit"];

function createDetail(parent, viewer) {
  const { scope, commands } = viewer;
  const flies = newFlight(scope, "detail");
  const pane = append(parent, make("aside", "ddviz-pane ddviz-detail-pane")).lastChild;
  const body = newScroller("", "Numbers of the selected node");
  append(pane, body);
  let shown = []; // [step, index] that is drawn already
  let isBrief = false; // what stands is of a step that flew by
  const onSelect = (index) => {
    commands.choose(index);
    commands.focusTree(); // the button that was pressed goes with the old numbers
  };

  function show(sections) {
    keepFocus(body, () => body.replaceChildren(...sections.filter(Boolean)));
  }

  function briefSections() {
    const [step, index] = shown;
    return [nodeHead(step, index), stepSection(step)].filter(Boolean);
  }

  function showAll() {
    isBrief = false;
    const [step, index] = shown;
    show([...nodeSections(step, index, onSelect), stepSection(step)]);
  }

  function showRest() {
    if (!shown[0]) return;
    showAll();
    viewer.panels.highlight.draw({ node: shown[1] });
  }

  return {
    draw({ view: step, node: index }) {
      if (shown[0] === step && shown[1] === index) return;
      const isQuick = shown[0] !== step && flies(showRest);
      shown = [step, index];
      if (!isQuick) showAll();
      else if (isBrief) rewrite(body, briefSections());
      else show(briefSections());
      isBrief = isQuick;
    },
    clear() {
      shown = [];
      isBrief = false;
      keepFocus(body, () => body.replaceChildren());
    },
  };
}

function nodeHead(step, index) {
  const node = index === BONUS ? step.bonus : step.nodes[index];
  return node ? nodeSection(step, node, index === BONUS) : null;
}

function nodeSections(step, index, onSelect) {
  const isBonus = index === BONUS;
  const node = isBonus ? step.bonus : step.nodes[index];
  if (!node) return [];
  const more = isBonus
    ? [whySection(step, BONUS, onSelect), bonusSection(step, node, onSelect)]
    : [whySection(step, index, onSelect), topSection(step, node, onSelect), factSection(step, node, onSelect)];
  return [nodeHead(step, index), ...more].filter(Boolean);
}

// What it is, and why it was accepted or not.
function nodeSection(step, node, isBonus) {
  const status = isBonus ? "bonus" : statusOf(node);
  const section = make("section", "ddviz-block");
  const kind = append(
    make("div", "ddviz-kind"),
    make("span", `ddviz-status ddviz-text-${status}`, `${SIGNS[status]} ${statusSaid(node, status)}`.trim()),
  );
  append(kind, make("span", "ddviz-muted", isBonus ? "the target's own token" : `node ${node.i}`));
  const label = make("bdi", "ddviz-token ddviz-token-large", shorten(node.label, 200));
  label.title = shorten(node.label, 2000);
  append(section, kind, label);
  if (node.differs) append(section, make("p", "ddviz-wrong", `≠ ${sentence(node.differs)}`));
  if (node.why) append(section, make("p", "ddviz-why", sentence(node.why)));
  for (const fault of node.faults ?? []) append(section, make("p", "ddviz-fault", `! ${fault}`));
  if (isBonus) append(section, probabilityBar("target", node.prob, "bonus"));
  else if (node.i !== 0 && (node.target_prob !== null || node.draft_prob !== null)) {
    append(
      section,
      probabilityBar("target", node.target_prob, "target"),
      probabilityBar("draft", node.draft_prob, "draft"),
    );
  }
  return section;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function probabilityBar(label, value, kind, name) {
  const row = make("div", "ddviz-prob");
  const track = make("span", "ddviz-prob-track");
  const fill = append(track, make("span", `ddviz-prob-fill ddviz-prob-${kind}`)).lastChild;
  fill.style.width = `${100 * clamp(value ?? 0, 0, 1)}%`;
  const number = make("span", "ddviz-prob-value", probability(value));
  number.title = value === null ? "not recorded" : String(value);
  return append(row, name ?? make("span", "ddviz-prob-name", label), track, number);
}

// The target's likeliest next tokens after this node, and which of them the tree holds.
function topSection(step, node, onSelect) {
  if (!node.top.length) return null;
  const section = make("section", "ddviz-block");
  const kind = node.top_kind === "filtered" ? "as acceptance used it" : "softmax of the raw logits";
  append(section, make("h4", "ddviz-heading", "Target after this node"));
  const children = new Map(node.children.map((child) => [step.nodes[child].id, step.nodes[child]]));
  for (const token of node.top) {
    const child = children.get(token.id);
    const isBonus =
      step.bonus && step.bonus.parent === node.i && step.bonus.id === token.id && step.path.includes(node.i);
    const status = child ? statusOf(child) : isBonus ? "bonus" : null;
    const name = make("bdi", "ddviz-prob-name ddviz-token", shorten(token.label, 24));
    name.title = `${shorten(token.label, 200)} · id ${token.id}`;
    const row = probabilityBar("", token.prob, status ?? "other", name);
    if (status) row.dataset.node = status === "bonus" ? BONUS : child.i;
    append(row, status ? nodeLink(status === "bonus" ? BONUS : child.i, status, onSelect) : make("span"));
    append(section, row);
  }
  const notes = [kind];
  if (node.entropy !== null) notes.push(`entropy ${precise(node.entropy, 3)} nats`);
  if (node.margin !== null) notes.push(`margin ${precise(node.margin, 3)}`);
  if (step.nonfinite) notes.push(`${step.nonfinite} logits of this step are NaN or infinite`);
  append(section, make("p", "ddviz-note-line", notes.join(" · ")));
  return section;
}

function nodeLink(index, status, onSelect) {
  const text = index === BONUS ? `${SIGNS.bonus} bonus` : `${SIGNS[status]} ${index}`.trim();
  const link = button(
    `ddviz-link ddviz-text-${status}`,
    text,
    `Select ${index === BONUS ? "the bonus" : `node ${index}`}`,
    () => onSelect(index),
  );
  link.dataset.node = index;
  return link;
}

function factSection(step, node, onSelect) {
  const section = make("section", "ddviz-block");
  const link = (index) =>
    index === null || index < 0 || !step.nodes[index] ? null : nodeLink(index, statusOf(step.nodes[index]), onSelect);
  append(section, make("h4", "ddviz-heading", "Numbers"));
  append(
    section,
    tiles([
      ["depth", node.depth],
      ["rank", node.rank],
      ["score", node.score],
      ["target prob", node.target_prob],
      ["draft prob", node.draft_prob],
      ["own coin", node.coin],
      ["judging coin", node.judged_by],
      ["running sum", node.running],
      ["token id", node.id],
      ["position", node.position],
      ["slot", node.slot],
      ["flat index", node.flat],
    ]),
    facts([["bytes", node.bytes]]),
    make("h4", "ddviz-heading", "Links"),
    facts([
      ["parent", node.i === 0 ? "none" : link(node.parent)],
      ["next_token", node.next_token, null, link(node.next_token)],
      ["next_sibling", node.next_sibling, null, link(node.next_sibling)],
    ]),
  );
  return section;
}

function bonusSection(step, bonus, onSelect) {
  const parent = step.nodes[bonus.parent];
  const section = append(make("section", "ddviz-block"), make("h4", "ddviz-heading", "Numbers"));
  return append(
    section,
    tiles([
      ["probability", bonus.prob],
      ["final coin", bonus.final_coin],
      ["token id", bonus.id],
      ["residual mass", bonus.residual_sum],
      ["mass before it", bonus.cdf],
    ]),
    facts([
      ["bytes", bonus.bytes],
      ["after node", null, null, parent ? nodeLink(bonus.parent, statusOf(parent), onSelect) : null],
      ["emitted", bonus.emitted ? "yes, the next step's root" : "no, the output was cut before it"],
    ]),
  );
}

// Short numbers, three beside each other, each under its name; the title has every digit.
function tiles(rows) {
  const grid = make("dl", "ddviz-grid");
  for (const [label, value] of rows) {
    const number = make("dd", "ddviz-value", precise(value));
    if (value !== null && value !== undefined) number.title = String(value);
    append(grid, append(make("div"), make("dt", "ddviz-tile-label", label), number));
  }
  return grid;
}

// [label, value, exact value for the title, element after it]; a value may be an element, null reads as absent.
function facts(rows) {
  const list = make("dl", "ddviz-list");
  for (const [label, value, exact, after] of rows) {
    const shown = make("dd", "ddviz-value");
    const absent = (value === null || value === undefined) && !after;
    append(
      shown,
      absent ? ABSENT : value instanceof Node ? value : value === null ? null : make("bdi", "", String(value)),
      after,
    );
    if (exact !== null && exact !== undefined) shown.title = String(exact);
    append(list, make("dt", "ddviz-muted", label), shown);
  }
  return list;
}

function stepSection(step) {
  const section = make("section", "ddviz-block");
  append(section, make("h4", "ddviz-heading", `Step ${step.index}`));
  const emitted = make("div", "ddviz-emitted");
  step.emitted.forEach((token, k) => {
    const kind = k < step.accept_len - 1 ? "accepted" : "bonus";
    append(emitted, make("bdi", `ddviz-chip ddviz-chip-${kind}`, shorten(token.label, 24)));
  });
  append(section, emitted);
  append(section, stageBar(step));
  const rows = [["prefix", `${step.prefix_len} tokens committed`]];
  if (step.batch)
    rows.push(["batch", `row ${step.batch.row} of ${step.batch.size}, T = ${step.batch.q_len}, ${step.batch.mode}`]);
  if (step.commit) rows.push(["committed", `${step.commit.committed_len} KV rows`]);
  return append(section, facts(rows));
}

function stageBar(step) {
  const names = Object.keys(step.stages).sort(
    (a, b) => ((STAGE_ORDER.indexOf(a) + 9) % 9) - ((STAGE_ORDER.indexOf(b) + 9) % 9),
  );
  if (!names.length) return null;
  const box = make("div", "ddviz-stages");
  const [bar, legend] = [make("div", "ddviz-stage-bar"), make("div", "ddviz-stage-legend")];
  const sum = names.reduce((total, name) => total + step.stages[name], 0) || 1;
  for (const name of names) {
    const kind = STAGE_ORDER.includes(name) ? name : "other";
    const part = append(bar, make("span", `ddviz-stage-${kind}`)).lastChild;
    part.style.width = `${(100 * step.stages[name]) / sum}%`;
    part.title = `${name} ${milliseconds(step.stages[name])} ms`;
    append(
      legend,
      append(
        make("span"),
        make("i", `ddviz-stage-${kind}`),
        `${name} `,
        make("b", "", milliseconds(step.stages[name])),
      ),
    );
  }
  append(legend, append(make("span", "ddviz-stage-total"), "step ", make("b", "", milliseconds(step.ms)), " ms"));
  return append(box, bar, legend);
}
