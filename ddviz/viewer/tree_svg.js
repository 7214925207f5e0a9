// The tree as SVG, for up to about 300 nodes: elements are pooled, a new step only changes attributes.

const GHOSTS = { ghost: " ddviz-ghost", offered: " ddviz-offered" }; // nodes that are not there yet, or no more

function createSvgTree(parent) {
  const svg = makeSvg("svg", "ddviz-svg");
  svg.setAttribute("role", "presentation");
  const viewport = makeSvg("g");
  const [edgeLayer, nodeLayer] = [makeSvg("g"), makeSvg("g")];
  const [hoverRing, selectedRing] = [makeSvg("rect", "ddviz-ring ddviz-ring-hover"), makeSvg("rect", "ddviz-ring")];
  for (const g of [viewport, edgeLayer, nodeLayer]) g.setAttribute("role", "presentation");
  edgeLayer.setAttribute("aria-hidden", "true");
  viewport.append(edgeLayer, hoverRing, selectedRing, nodeLayer);
  svg.append(viewport);
  parent.append(svg);
  const edgePool = newPool(edgeLayer, () => newPooled("path"));
  const nodePool = newPool(nodeLayer, newSvgNode);
  let elements = new Map();

  return {
    element: svg,
    draw(layout) {
      layout.edges.forEach((edge, k) => drawSvgEdge(edgePool.at(k), edge));
      edgePool.keep(layout.edges.length);
      const items = inReadingOrder(layout.items);
      elements = new Map(items.map((item, k) => [item.index, drawSvgNode(nodePool.at(k), item)]));
      nodePool.keep(layout.items.length);
    },
    move({ x, y, k, kx }) {
      viewport.setAttribute("transform", `translate(${x} ${y}) scale(${kx} ${k})`);
      svg.classList.toggle("ddviz-map", k < READABLE_SCALE);
    },
    mark(selected, hovered) {
      placeRing(selectedRing, selected);
      placeRing(hoverRing, hovered === selected ? null : hovered);
      for (const [index, element] of elements) {
        element.setAttribute("aria-selected", String(selected !== null && index === selected.index));
      }
    },
    paint() {}, // the browser does
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
      if (k === pool.length) {
        pool.push(create());
        parent.append(pool[k].element);
      }
      if (k >= used) {
        pool[k].element.style.display = "";
        used = k + 1;
      }
      return pool[k];
    },
    keep(count) {
      for (let k = count; k < used; k++) pool[k].element.style.display = "none";
      used = Math.min(used, count);
    },
  };
}

// An element and the attributes it has: setting one to what it is already costs nothing.
function newPooled(tag) {
  const element = makeSvg(tag);
  const attributes = new Map();
  let text = "";
  return {
    element,
    set(name, value) {
      if (attributes.get(name) === value) return;
      attributes.set(name, value);
      element.setAttribute(name, value);
    },
    setOrRemove(name, value) {
      if (value !== null) return this.set(name, value);
      if (attributes.delete(name)) element.removeAttribute(name);
    },
    write(value) {
      if (value === text) return;
      text = value;
      element.textContent = value;
      element.style.display = value ? "" : "none";
    },
  };
}

function newSvgNode() {
  const group = newPooled("g");
  group.set("role", "treeitem");
  const parts = { shape: newPooled("path"), track: newPooled("path"), bar: newPooled("path") };
  for (const name of ["label", "note", "flaw"]) parts[name] = newPooled("text");
  for (const [name, part] of Object.entries(parts)) {
    part.set("class", `ddviz-${name}`);
    group.element.append(part.element);
  }
  return { ...parts, group, element: group.element };
}

function drawSvgNode({ group, shape, label, note, track, bar, flaw }, item) {
  const { w, h, node, sign, status } = item;
  group.set("class", `ddviz-node ddviz-${status}${GHOSTS[item.ghost] ?? ""}${item.hidden ? " ddviz-is-folded" : ""}`);
  group.set("transform", `translate(${item.x} ${item.y})`);
  group.set("data-node", item.index);
  for (const [name, value] of Object.entries(spokenOf(item))) group.setOrRemove(name, value);
  shape.set("d", outline(item));
  const baseline = baselineOf(item);
  label.write(sign ? `${sign} ${item.label}` : item.label);
  at(label, 9, baseline);
  note.write(item.note);
  at(note, w - 9, baseline);
  const prob = status === "bonus" ? null : (node.target_prob ?? null);
  const line = (width) => (prob === null ? "" : `M9 ${h - 2.75}h${width}`);
  track.set("d", line(w - 18));
  bar.set("d", line(Math.max((w - 18) * clamp(prob ?? 0, 0, 1), 0.5)));
  flaw.write(node.faults?.length ? "!" : "");
  at(flaw, w - 2, 3);
  return group.element;
}

function at(pooled, x, y) {
  pooled.set("x", x);
  pooled.set("y", y);
}

function baselineOf(item) {
  return item.h / 2 + (item.h > DENSE_HEIGHT ? 3.5 : 3);
}

function drawSvgEdge(path, edge) {
  path.set("class", `ddviz-edge ddviz-edge-${edge.kind}${GHOSTS[edge.ghost] ?? ""}`);
  if (edge.path) return path.set("d", edge.path);
  const { x0, y0, x1, y1, trunk, radius: r, start } = edgePoints(edge);
  const down = start === null ? `M${x0} ${y0}H${trunk - r}Q${trunk} ${y0} ${trunk} ${y0 + r}` : `M${trunk} ${start}`;
  const turn = `V${y1 - r}Q${trunk} ${y1} ${trunk + r} ${y1}H${x1}`;
  return path.set("d", y0 === y1 ? `M${x0} ${y0}H${x1}` : down + turn);
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

// A node before what hangs below it, siblings in link order: a screen reader finds them as a tree is read.
function inReadingOrder(items) {
  const [order, waiting] = [new Set(), items.slice(0, 1)];
  while (waiting.length) {
    const item = waiting.pop();
    if (order.has(item)) continue;
    order.add(item);
    waiting.push(...item.children.toReversed());
  }
  for (const item of items) order.add(item); // of a damaged step, what no parent has
  return [...order];
}

// What a tree item says of itself, by the WAI-ARIA tree pattern; null = not said.
function spokenOf(item) {
  const siblings = item.parent?.children ?? [item];
  return {
    "aria-label": describe(item),
    "aria-level": String(item.depth + 1),
    "aria-posinset": String(siblings.indexOf(item) + 1),
    "aria-setsize": String(siblings.length),
    "aria-expanded": item.hidden ? "false" : item.children.length ? "true" : null, // a leaf has nothing to fold
  };
}

// One line for a screen reader.
function describe({ index, node, status, hidden }) {
  const parts = [index === BONUS ? "bonus" : `node ${index}`, `token ${node.label}`];
  if (index !== BONUS) parts.push(statusSaid(node, status));
  if (node.target_prob !== null && node.target_prob !== undefined) {
    parts.push(`target probability ${probability(node.target_prob)}`);
  }
  if (node.draft_prob !== null && node.draft_prob !== undefined) {
    parts.push(`draft probability ${probability(node.draft_prob)}`);
  }
  if (index === BONUS && node.prob !== null) parts.push(`probability ${probability(node.prob)}`);
  if (hidden) parts.push(`folded, hides ${hiddenSaid(hidden)}`);
  return parts.join(", ");
}
