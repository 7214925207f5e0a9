// The hover card: a node's most wanted numbers beside it.
function createCard(parent) {
  const card = make("div", "ddviz-card");
  card.setAttribute("role", "tooltip");
  card.hidden = true;
  parent.append(card);
  return {
    hide: () => (card.hidden = true),
    // At an item, inside a stage of that size.
    show(item, view, size) {
      card.replaceChildren(...cardLines(item));
      card.hidden = false;
      const [x, y] = [item.x * view.kx + view.x, (item.y + item.h) * view.k + view.y + 10];
      const above = item.y * view.k + view.y - card.offsetHeight - 10;
      const top = y + card.offsetHeight <= size.height - 4 || above < 4 ? y : above;
      card.style.left = `${clamp(x, 4, Math.max(4, size.width - card.offsetWidth - 4))}px`;
      card.style.top = `${clamp(top, 4, Math.max(4, size.height - card.offsetHeight - 4))}px`;
    },
  };
}

function cardLines(item) {
  const { index, node, status, sign } = item;
  const name = append(make("div", "ddviz-card-name"), make("bdi", "ddviz-token", shorten(node.label, 40)));
  const state = make("div", `ddviz-status ddviz-text-${status}`, `${sign} ${statusSaid(node, status)}`.trim());
  const facts =
    index === BONUS
      ? [
          ["probability", probability(node.prob)],
          ["id", node.id],
        ]
      : [
          ["target", probability(node.target_prob)],
          ["draft", probability(node.draft_prob)],
          ["rank", node.rank],
          ["depth", node.depth],
        ];
  const line = make("div", "ddviz-card-facts");
  for (const [label, value] of facts) {
    append(line, append(make("span"), make("i", "", label), ` ${value ?? ABSENT}`));
  }
  const folded = item.hidden ? make("div", "ddviz-muted", `folded: hides ${hiddenSaid(item.hidden)}`) : null;
  return [append(name, state), line, folded, node.why ? make("div", "ddviz-muted", node.why) : null].filter(Boolean);
}

function createLegend() {
  const legend = make("footer", "ddviz-legend");
  for (const [status, says] of [
    ["root", "root"],
    ["accepted", "accepted"],
    ["rejected", "rejected"],
    ["unreached", "unreached"],
    ["bonus", "bonus"],
  ]) {
    const sample = makeSvg("svg", "ddviz-sample");
    sample.setAttribute("viewBox", "-1 -1 24 18");
    sample.setAttribute("aria-hidden", "true");
    const group = makeSvg("g", `ddviz-node ddviz-${status}`);
    const shape = makeSvg("path", "ddviz-shape");
    shape.setAttribute("d", outline({ w: 22, h: 16, status }));
    const sign = makeSvg("text", "ddviz-sign");
    sign.textContent = SIGNS[status];
    place(sign, 7, 12);
    sample.append(append(group, shape, sign));
    append(legend, append(make("span"), sample, says));
  }
  append(legend, append(make("span", "ddviz-legend-bar"), make("i"), "target probability"));
  return append(legend, make("span", "ddviz-keys", keysLegend()));
}
