// The same tree on a canvas, for more than about 300 nodes. Only what is in view is drawn, and labels only where
// they can be read.

const READABLE_SCALE = 0.45;
const UNSPOKEN = { "aria-level": null, "aria-posinset": null, "aria-setsize": null, "aria-expanded": null };

// size: of the stage, which the tree keeps; asking the canvas would cost a page layout.
function createCanvasTree(parent, palette, size) {
  const canvas = make("canvas", "ddviz-canvas");
  canvas.setAttribute("aria-hidden", "true");
  const spoken = make("div", "ddviz-spoken"); // what a screen reader finds in place of the pixels
  spoken.setAttribute("role", "treeitem");
  parent.append(canvas, spoken);
  let layout = null;
  let view = { x: 0, y: 0, k: 1, kx: 1 };
  let marks = [null, null];

  function paint() {
    if (!layout) return;
    const { width, height } = size;
    const context = sharpContext(canvas, width, height);
    const colours = palette();
    const ratio = context.getTransform().a;
    const { x, y, k, kx } = view;
    context.translate(x, y);
    context.scale(kx, k);
    const seen = visibleTest(view, width, height);
    const items = layout.items.filter((item) => seen(item, item));
    const edges = layout.edges.filter(({ from, to }) => seen(from, to));
    paintEdges(context, edges, colours, Math.max(k, 0.4) * ratio);
    if (k < READABLE_SCALE) paintMap(context, items, colours);
    else paintNodes(context, items, colours);
    paintRing(context, marks[1], colours.faint, ratio);
    paintRing(context, marks[0], colours.focus, ratio);
  }

  return {
    element: canvas,
    draw(next) {
      layout = next;
    },
    move(next) {
      view = next;
    },
    mark(selected, hovered) {
      marks = [selected, hovered];
      const says = selected ? spokenOf(selected) : { ...UNSPOKEN, "aria-label": "no node selected" };
      for (const [name, value] of Object.entries({ ...says, "aria-selected": String(selected !== null) })) {
        if (value === null) spoken.removeAttribute(name);
        else spoken.setAttribute(name, value);
      }
    },
    paint,
    elementOf: () => spoken,
    clear() {
      layout = null;
      marks = [null, null];
      sharpContext(canvas, size.width, size.height);
    },
  };
}

// Whether the box around two items meets the window.
function visibleTest({ x, y, k, kx }, width, height) {
  const [left, top, right, bottom] = [-x / kx, -y / k, (width - x) / kx, (height - y) / k];
  return (a, b) =>
    Math.max(a.x + a.w, b.x + b.w) >= left &&
    Math.min(a.x, b.x) <= right &&
    Math.max(a.y, b.y) + b.h >= top &&
    Math.min(a.y, b.y) <= bottom;
}

// weight: device pixels of a line one wide, however the axes are scaled.
function paintEdges(context, edges, colours, weight) {
  const styles = {
    plain: [colours.edge, 1.25, []],
    accepted: [colours.accepted, 3, []],
    bonus: [colours.bonus, 2, [2, 4]],
  };
  for (const kind of ["plain", "accepted", "bonus"]) {
    const [colour, width, dashes] = styles[kind];
    [context.strokeStyle, context.lineWidth] = [colour, width * weight];
    context.setLineDash(dashes.map((dash) => dash * weight));
    context.beginPath();
    for (const edge of edges) {
      if (edge.kind !== kind) continue;
      const { x0, y0, x1, y1, trunk, start } = edgePoints(edge);
      if (start !== null) context.moveTo(trunk, start);
      else context.moveTo(x0, y0);
      if (y0 !== y1) {
        if (start === null) context.lineTo(trunk, y0);
        context.lineTo(trunk, y1);
      }
      context.lineTo(x1, y1);
    }
    inPixels(context, () => context.stroke());
  }
  context.setLineDash([]);
  for (const { path, isWrong } of edges) {
    if (!path) continue;
    context.strokeStyle = isWrong ? colours.wrong : colours.muted;
    context.lineWidth = 1.25;
    context.stroke(new Path2D(path));
  }
}

// In device pixels, while a path keeps the place that it was given.
function inPixels(context, paint) {
  const scaled = context.getTransform();
  context.setTransform(1, 0, 0, 1, 0, 0);
  paint(scaled);
  context.setTransform(scaled);
}

// A tree too large to be read: each node a block of its colour.
function paintMap(context, items, colours) {
  inPixels(context, ({ a, d, e, f }) => {
    for (const item of items) {
      const { stroke, alpha } = lookOf(item, colours);
      context.globalAlpha = alpha;
      context.fillStyle = stroke;
      context.fillRect(e + a * item.x, f + d * item.y, Math.max(a * item.w, 2), Math.max(d * item.h, 1));
    }
    context.globalAlpha = 1;
  });
}

// In passes, each of one font: setting another has the browser restyle the page.
function paintNodes(context, items, colours) {
  const seen = items.map((item) => ({ item, ...lookOf(item, colours) }));
  paintShapes(context, seen, colours);
  useFont(context, LABEL_FONT);
  context.direction = "ltr";
  for (const node of seen) paintLabel(context, node, colours);
  context.textAlign = "right";
  for (const node of seen) if (node.item.note) paintNote(context, node, colours);
  context.textAlign = "left";
  context.globalAlpha = 1;
}

function lookOf({ status, ghost }, colours) {
  const [fill, stroke, ink] = {
    root: [colours.ink, colours.ink, colours.panel],
    accepted: [colours.accepted, colours.accepted, colours.acceptedInk],
    rejected: [colours.rejectedSoft, colours.rejected, colours.rejected],
    unreached: [colours.panel, colours.faint, colours.muted],
    bonus: [colours.bonusSoft, colours.bonus, colours.bonus],
  }[status];
  return { fill, stroke, ink, alpha: { ghost: 0.3, offered: 0.6 }[ghost] ?? 1 };
}

// Outlines are painted once for each size and look, since dashes take the most time of all.
function paintShapes(context, nodes, colours) {
  inPixels(context, ({ a: scale, e: left, f: top }) => {
    for (const { item, fill, stroke, alpha } of nodes) {
      const shape = shapeOf(item, { fill, stroke, scale, colours });
      context.globalAlpha = alpha;
      context.drawImage(shape, Math.round(left + scale * item.x) - 2, Math.round(top + scale * item.y) - 2);
    }
    context.globalAlpha = 1;
  });
}

const SHAPES_KEPT = 2000;
const SHAPES = new WeakMap(); // colours -> by size and look, a canvas in device pixels with a margin of 2

function shapeOf({ w, h, status }, { fill, stroke, scale, colours }) {
  if (!SHAPES.has(colours)) SHAPES.set(colours, new Map());
  const [kept, key] = [SHAPES.get(colours), `${status} ${w} ${h} ${scale}`];
  if (kept.has(key)) return kept.get(key);
  if (kept.size >= SHAPES_KEPT) kept.clear();
  const shape = new OffscreenCanvas(Math.ceil(w * scale) + 4, Math.ceil(h * scale) + 4);
  const context = shape.getContext("2d");
  const path = new Path2D(outline({ w, h, status }));
  context.setTransform(scale, 0, 0, scale, 2, 2);
  [context.fillStyle, context.strokeStyle, context.lineWidth] = [fill, stroke, 1.25];
  context.setLineDash(status === "unreached" ? [3, 3] : status === "bonus" ? [2, 3] : []);
  context.fill(path);
  context.stroke(path);
  kept.set(key, shape.transferToImageBitmap());
  return kept.get(key);
}

function paintLabel(context, { item, ink, alpha }, colours) {
  const { x, y, w, node, sign, label } = item;
  context.globalAlpha = alpha;
  context.fillStyle = ink;
  context.fillText(sign ? `${sign} ${label}` : label, x + 9, y + baselineOf(item));
  paintProbability(context, item, { ink, alpha, colours });
  if (!node.faults?.length) return;
  context.globalAlpha = alpha;
  context.fillStyle = colours.warn;
  context.fillText("!", x + w - 2, y + 3);
}

// The target's probability as a number, or what is folded.
function paintNote(context, { item, ink, alpha }, colours) {
  useFont(context, `${item.hidden ? "bold " : ""}10px system-ui, sans-serif`);
  context.globalAlpha = alpha;
  context.fillStyle = item.status === "unreached" ? colours.muted : ink;
  context.fillText(item.note, item.x + item.w - 9, item.y + baselineOf(item));
}

// The same as a bar along the foot.
function paintProbability(context, { x, y, w, h, node, status }, { ink, alpha, colours }) {
  const prob = status === "bonus" ? null : (node.target_prob ?? null);
  if (prob === null) return;
  const [wide, foot] = [w - 18, y + h - 3.75];
  context.fillStyle = { accepted: ink, rejected: ink, unreached: colours.faint }[status] ?? colours.muted;
  context.globalAlpha = 0.2 * alpha;
  context.fillRect(x + 9, foot, wide, 2);
  context.globalAlpha = alpha;
  context.fillRect(x + 9, foot, Math.max(wide * clamp(prob, 0, 1), 0.5), 2);
}

function paintRing(context, item, colour, ratio) {
  if (!item) return;
  const round = item.status === "accepted" || item.status === "bonus" ? item.h / 2 + 3 : 7;
  inPixels(context, ({ a, d, e, f }) => {
    const [w, h] = [Math.max(a * (item.w + 6), 8 * ratio), Math.max(d * (item.h + 6), 8 * ratio)];
    const [x, y] = [e + a * (item.x + item.w / 2), f + d * (item.y + item.h / 2)];
    context.strokeStyle = colour;
    context.lineWidth = Math.max(2 * d, 1.5 * ratio);
    context.beginPath();
    context.roundRect(x - w / 2, y - h / 2, w, h, Math.min(round * d, h / 2));
    context.stroke();
  });
}
