// The same tree on a canvas, for more than about 300 nodes. Only what is in view is drawn, and labels only where
// they can be read.

const READABLE_SCALE = 0.45;

// size: of the stage, which the tree keeps; asking the canvas would cost a page layout.
function createCanvasTree(parent, palette, size) {
  const canvas = make("canvas", "ddviz-canvas");
  const easel = make("canvas"); // outside the page: setting a font on a canvas in it has the page laid out
  canvas.setAttribute("aria-hidden", "true");
  const spoken = make("div", "ddviz-spoken"); // what a screen reader finds in place of the pixels
  spoken.setAttribute("role", "treeitem");
  parent.append(canvas, spoken);
  let layout = null;
  let view = { x: 0, y: 0, k: 1 };
  let marks = [null, null];

  function paint() {
    if (!layout) return;
    const { width, height } = size;
    const context = sharpContext(easel, width, height);
    const colours = palette();
    context.translate(view.x, view.y);
    context.scale(view.k, view.k);
    const seen = visibleTest(view, width, height);
    paintEdges(
      context,
      layout.edges.filter(({ from, to }) => seen(from, to)),
      colours,
    );
    for (const item of layout.items) if (seen(item, item)) paintNode(context, item, colours, view.k);
    paintRing(context, marks[1], colours.faint);
    paintRing(context, marks[0], colours.focus);
    sharpContext(canvas, width, height).drawImage(easel, 0, 0, width, height);
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
      spoken.setAttribute("aria-label", selected ? describe(selected) : "no node selected");
      spoken.setAttribute("aria-selected", String(selected !== null));
      const expanded = selected ? expandedOf(selected) : null;
      if (expanded === null) spoken.removeAttribute("aria-expanded");
      else spoken.setAttribute("aria-expanded", expanded);
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
function visibleTest({ x, y, k }, width, height) {
  const [left, top, right, bottom] = [-x / k, -y / k, (width - x) / k, (height - y) / k];
  return (a, b) =>
    Math.max(a.x + a.w, b.x + b.w) >= left &&
    Math.min(a.x, b.x) <= right &&
    Math.max(a.y, b.y) + b.h >= top &&
    Math.min(a.y, b.y) <= bottom;
}

function paintEdges(context, edges, colours) {
  const styles = {
    plain: [colours.edge, 1.25, []],
    accepted: [colours.accepted, 3, []],
    bonus: [colours.bonus, 2, [2, 4]],
  };
  for (const kind of ["plain", "accepted", "bonus"]) {
    [context.strokeStyle, context.lineWidth] = styles[kind];
    context.setLineDash(styles[kind][2]);
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
    context.stroke();
  }
  context.setLineDash([]);
  for (const { path, isWrong } of edges) {
    if (!path) continue;
    context.strokeStyle = isWrong ? colours.wrong : colours.muted;
    context.stroke(new Path2D(path));
  }
}

function paintNode(context, item, colours, scale) {
  const look = {
    root: [colours.ink, colours.ink, colours.panel],
    accepted: [colours.accepted, colours.accepted, colours.acceptedInk],
    rejected: [colours.rejectedSoft, colours.rejected, colours.rejected],
    unreached: [colours.panel, colours.faint, colours.muted],
    bonus: [colours.bonusSoft, colours.bonus, colours.bonus],
  }[item.status];
  const path = (item.outline ??= new Path2D(outline(item)));
  context.save();
  context.globalAlpha = { ghost: 0.3, offered: 0.6 }[item.ghost] ?? 1;
  context.translate(item.x, item.y);
  [context.fillStyle, context.strokeStyle] = look;
  context.lineWidth = 1.25;
  context.setLineDash(item.status === "unreached" ? [3, 3] : item.status === "bonus" ? [2, 3] : []);
  context.fill(path);
  context.stroke(path);
  if (scale >= READABLE_SCALE) {
    context.font = LABEL_FONT;
    context.fillStyle = look[2];
    context.direction = "ltr";
    context.fillText(item.sign ? `${item.sign} ${item.label}` : item.label, 9, baselineOf(item));
    paintProbability(context, item, look[2], colours);
  }
  if (item.node.faults?.length) {
    context.fillStyle = colours.warn;
    context.fillText("!", item.w - 2, 3);
  }
  context.restore();
}

// The target's probability: a bar along the foot, and a number where there is room.
function paintProbability(context, { w, h, node, status, note, ...item }, ink, colours) {
  const prob = status === "bonus" ? null : (node.target_prob ?? null);
  if (note) {
    context.font = `${item.hidden ? "bold " : ""}10px system-ui, sans-serif`;
    context.textAlign = "right";
    context.fillStyle = status === "unreached" ? colours.muted : ink;
    context.fillText(note, w - 9, baselineOf({ h, ...item }));
    context.textAlign = "left";
  }
  if (prob === null) return;
  const alpha = context.globalAlpha;
  context.strokeStyle = { accepted: ink, rejected: ink, unreached: colours.faint }[status] ?? colours.muted;
  context.lineWidth = 2;
  context.setLineDash([]);
  for (const [wide, strength] of [
    [w - 18, 0.2],
    [Math.max((w - 18) * clamp(prob, 0, 1), 0.5), 1],
  ]) {
    context.globalAlpha = alpha * strength;
    context.beginPath();
    context.moveTo(9, h - 2.75);
    context.lineTo(9 + wide, h - 2.75);
    context.stroke();
  }
  context.globalAlpha = alpha;
}

function paintRing(context, item, colour) {
  if (!item) return;
  context.strokeStyle = colour;
  context.lineWidth = 2;
  const round = item.status === "accepted" || item.status === "bonus" ? item.h / 2 + 3 : 7;
  context.beginPath();
  context.roundRect(item.x - 3, item.y - 3, item.w + 6, item.h + 6, round);
  context.stroke();
}
