// The tree as SVG, for up to about 300 nodes: elements are pooled, a new step only changes attributes.

function createSvgTree(parent) {
  const svg = makeSvg("svg", "ddviz-svg");
  svg.setAttribute("role", "presentation");
  const viewport = makeSvg("g");
  const [edgeLayer, nodeLayer] = [makeSvg("g"), makeSvg("g")];
  const [hoverRing, selectedRing] = [makeSvg("rect", "ddviz-ring ddviz-ring-hover"), makeSvg("rect", "ddviz-ring")];
  for (const g of [viewport, edgeLayer, nodeLayer]) g.setAttribute("role", "presentation");
  viewport.append(edgeLayer, hoverRing, selectedRing, nodeLayer);
  svg.append(viewport);
  parent.append(svg);
  const edgePool = newPool(edgeLayer, () => makeSvg("path"));
  const nodePool = newPool(nodeLayer, newSvgNode);
  let elements = new Map();

  return {
    element: svg,
    draw(layout) {
      layout.edges.forEach((edge, k) => drawSvgEdge(edgePool.at(k), edge));
      edgePool.keep(layout.edges.length);
      elements = new Map(layout.items.map((item, k) => [item.index, drawSvgNode(nodePool.at(k), item)]));
      nodePool.keep(layout.items.length);
    },
    move({ x, y, k }) {
      viewport.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    },
    mark(selected, hovered) {
      placeRing(selectedRing, selected);
      placeRing(hoverRing, hovered === selected ? null : hovered);
      for (const [index, element] of elements) {
        element.setAttribute("aria-selected", String(selected !== null && index === selected.index));
      }
    },
    elementOf: (item) => elements.get(item.index) ?? null,
    clear() {
      edgePool.keep(0);
      nodePool.keep(0);
      elements.clear();
      placeRing(selectedRing, null);
      placeRing(hoverRing, null);
    },
  };
}

// Elements in use stand first; the others wait, hidden, for a larger step.
function newPool(parent, create) {
  const pool = [];
  let used = 0;
  return {
    at(k) {
      if (k === pool.length) pool.push(parent.appendChild(create()));
      if (k >= used) {
        pool[k].style.display = "";
        used = k + 1;
      }
      return pool[k];
    },
    keep(count) {
      for (let k = count; k < used; k++) pool[k].style.display = "none";
      used = Math.min(used, count);
    },
  };
}

function newSvgNode() {
  const group = makeSvg("g");
  group.setAttribute("role", "treeitem");
  const text = makeSvg("text", "ddviz-label");
  text.append(makeSvg("tspan", "ddviz-space"), makeSvg("tspan"));
  const [track, bar] = [makeSvg("rect", "ddviz-bar-track"), makeSvg("rect", "ddviz-bar")];
  for (const rect of [track, bar]) rect.setAttribute("height", "2");
  const [shape, sign] = [makeSvg("path", "ddviz-shape"), makeSvg("text", "ddviz-sign")];
  const [note, flaw] = [makeSvg("text", "ddviz-note"), makeSvg("text", "ddviz-flaw")];
  group.append(shape, sign, text, note, track, bar, flaw);
  return group;
}

function drawSvgNode(group, item) {
  const [shape, sign, text, note, track, bar, flaw] = group.children;
  const baseline = baselineOf(item);
  group.setAttribute("class", `ddviz-node ddviz-${item.status}`);
  group.setAttribute("transform", `translate(${item.x} ${item.y})`);
  group.setAttribute("aria-label", describe(item));
  group.setAttribute("aria-level", String(item.depth + 1));
  group.dataset.node = item.index;
  shape.setAttribute("d", outline(item));
  sign.textContent = item.sign;
  place(sign, 8, baseline);
  const spaces = /^·*/.exec(item.label)[0];
  text.children[0].textContent = spaces;
  text.children[1].textContent = item.label.slice(spaces.length);
  place(text, 9 + item.signWidth, baseline);
  note.textContent = item.note;
  place(note, item.w - 8, baseline);
  const prob = item.node.target_prob ?? null;
  const shown = prob !== null && item.status !== "bonus";
  track.style.display = bar.style.display = shown ? "" : "none";
  if (shown) {
    const width = item.w - 18;
    setBox(track, 9, item.h - 3.5, width);
    setBox(bar, 9, item.h - 3.5, Math.max(width * clamp(prob, 0, 1), 0.5));
  }
  flaw.textContent = item.node.faults?.length ? "!" : "";
  place(flaw, item.w - 2, 3);
  return group;
}

function baselineOf(item) {
  return item.h / 2 + (item.h > DENSE_HEIGHT ? 3.5 : 3);
}

function drawSvgEdge(path, edge) {
  const { x0, y0, x1, y1, trunk, radius: r } = edgePoints(edge);
  path.setAttribute("class", `ddviz-edge ddviz-edge-${edge.kind}`);
  path.setAttribute("aria-hidden", "true");
  const bend = `H${trunk - r}Q${trunk} ${y0} ${trunk} ${y0 + r}V${y1 - r}Q${trunk} ${y1} ${trunk + r} ${y1}`;
  path.setAttribute("d", y0 === y1 ? `M${x0} ${y0}H${x1}` : `M${x0} ${y0}${bend}H${x1}`);
}

// Shape tells the status as well as colour does: pill accepted, cut corners rejected, plain box the others.
function outline({ w, h, status }) {
  const cut = { accepted: h / 2, bonus: h / 2, rejected: 6, unreached: 5, root: 2 }[status];
  const corner = (x, y) => (status === "rejected" ? `L${x} ${y}` : `A${cut} ${cut} 0 0 1 ${x} ${y}`);
  return (
    `M${cut} 0H${w - cut}${corner(w, cut)}V${h - cut}${corner(w - cut, h)}` +
    `H${cut}${corner(0, h - cut)}V${cut}${corner(cut, 0)}Z`
  );
}

function place(element, x, y) {
  element.setAttribute("x", x);
  element.setAttribute("y", y);
}

function setBox(rect, x, y, width) {
  place(rect, x, y);
  rect.setAttribute("width", width);
}

function placeRing(ring, item) {
  ring.style.display = item ? "" : "none";
  if (!item) return;
  setBox(ring, item.x - 3, item.y - 3, item.w + 6);
  ring.setAttribute("height", item.h + 6);
  ring.setAttribute("rx", item.status === "accepted" || item.status === "bonus" ? item.h / 2 + 3 : 7);
}

// One line for a screen reader.
function describe({ index, node, status }) {
  const parts = [index === BONUS ? "bonus" : `node ${index}`, `token ${node.label}`];
  if (index !== BONUS) parts.push(status);
  if (node.target_prob !== null && node.target_prob !== undefined) {
    parts.push(`target probability ${probability(node.target_prob)}`);
  }
  if (node.draft_prob !== null && node.draft_prob !== undefined) {
    parts.push(`draft probability ${probability(node.draft_prob)}`);
  }
  if (index === BONUS && node.prob !== null) parts.push(`probability ${probability(node.prob)}`);
  return parts.join(", ");
}
