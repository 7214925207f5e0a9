// The tree pane: draws a step, pans and zooms, follows the pointer and the keyboard.
//
// In:  step views; callbacks onSelect(index). Out: DOM below `parent`.
// Not here: where nodes stand (layout.js), how they are painted (tree_svg.js, tree_canvas.js), numbers (detail.js).

const SVG_LIMIT = 300; // nodes; above, the canvas is faster
const [SCALE_MIN, SCALE_MAX] = [0.62, 1.5]; // what fitting may choose: below, labels can't be read
const PAD = { left: 18, top: 18, right: 18, bottom: 18 };

function createTree(parent, { scope, root, onSelect }) {
  const pane = append(parent, make("section", "ddviz-pane ddviz-tree-pane")).lastChild;
  const head = make("header", "ddviz-pane-head");
  const [title, summary, tools] = [make("h3", "ddviz-title", "Draft tree"), make("span", "ddviz-muted"), make("div", "ddviz-tools")];
  const stage = make("div", "ddviz-stage");
  stage.tabIndex = 0;
  stage.setAttribute("role", "tree");
  stage.setAttribute("aria-label", "Draft tree");
  const faults = make("div", "ddviz-faults");
  const overlay = make("div", "ddviz-overlay");
  append(pane, append(head, title, summary, tools), faults, stage, createLegend());
  let palette = null;
  const svg = createSvgTree(stage);
  const canvas = createCanvasTree(stage, () => (palette ??= paletteOf(root)));
  const card = createCard(stage);
  append(stage, overlay);

  const state = { step: null, layout: null, renderer: svg, selected: null, hovered: null, byKeyboard: false };
  const view = { x: 0, y: 0, k: 1, auto: true };

  append(
    tools,
    button("ddviz-icon", "−", "Zoom out (−)", () => zoomBy(1 / 1.25)),
    button("ddviz-icon", "+", "Zoom in (+)", () => zoomBy(1.25)),
    button("", "fit", "Fit the whole tree (0)", () => fitWhole()),
  );

  function draw(step) {
    state.step = step;
    state.hovered = null;
    card.hide();
    const wanted = step.nodes.length > SVG_LIMIT ? canvas : svg;
    if (wanted !== state.renderer) state.renderer.clear();
    state.renderer = wanted;
    stage.classList.toggle("ddviz-uses-canvas", wanted === canvas);
    stage.setAttribute("aria-label", `Draft tree of step ${step.index}`);
    title.textContent = step.nodes.length === 1 ? "One token, no draft" : "Draft tree";
    summary.textContent = summaryOf(step);
    faults.textContent = step.faults.join(" · ");
    faults.hidden = !step.faults.length;
    relayout();
  }

  function relayout() {
    if (!state.step) return;
    const { clientWidth: width, clientHeight: height } = stage;
    if (!width || !height) return;
    state.layout = layoutTree(state.step, width - PAD.left - PAD.right, height - PAD.top - PAD.bottom);
    state.renderer.draw(state.layout);
    if (view.auto) fitReadable(width, height);
    move();
    mark();
  }

  // The largest readable scale that shows everything; where there is none, the accepted path is kept in view.
  function fitReadable(width, height) {
    view.k = clamp(Math.floor(scaleToFit(width, height) * 20) / 20, SCALE_MIN, SCALE_MAX);
    [view.x, view.y] = [PAD.left, PAD.top];
    const end = state.layout.byIndex.get(BONUS);
    if (!end) return;
    view.x = Math.min(view.x, width - PAD.right - (end.x + end.w) * view.k);
    view.y = Math.min(view.y, height - PAD.bottom - (end.y + end.h) * view.k);
  }

  function fitWhole() {
    view.auto = true;
    const { clientWidth: width, clientHeight: height } = stage;
    if (!state.layout) return;
    fitReadable(width, height);
    if (scaleToFit(width, height) < SCALE_MIN) {
      Object.assign(view, { k: scaleToFit(width, height), x: PAD.left, y: PAD.top });
    }
    move();
  }

  function scaleToFit(width, height) {
    const { width: w, height: h } = state.layout;
    return Math.min((width - PAD.left - PAD.right) / w, (height - PAD.top - PAD.bottom) / h);
  }

  function move() {
    state.renderer.move(view);
    card.hide();
  }

  function zoomBy(factor, at) {
    const [px, py] = at ?? [stage.clientWidth / 2, stage.clientHeight / 2];
    const k = clamp(view.k * factor, 0.05, 4);
    view.x = px - ((px - view.x) * k) / view.k;
    view.y = py - ((py - view.y) * k) / view.k;
    Object.assign(view, { k, auto: false });
    move();
  }

  function itemOf(index) {
    return index === null ? null : (state.layout?.byIndex.get(index) ?? null);
  }

  function mark() {
    const item = itemOf(state.selected);
    state.renderer.mark(item, state.hovered);
    stage.ariaActiveDescendantElement = item ? state.renderer.elementOf(item) : null;
  }

  function select(index) {
    state.selected = index;
    mark();
  }

  function revealAndTell(item) {
    const [left, top] = [item.x * view.k + view.x, item.y * view.k + view.y];
    const [right, bottom] = [left + item.w * view.k, top + item.h * view.k];
    const dx = Math.max(0, 8 - left) - Math.max(0, right - stage.clientWidth + 8);
    const dy = Math.max(0, 8 - top) - Math.max(0, bottom - stage.clientHeight + 8);
    if (dx || dy) {
      view.x += dx;
      view.y += dy;
      view.auto = false;
      move();
    }
    onSelect(item.index);
    card.show(item, view, stage);
  }

  // Keyboard: moves in the drawing as the eye does; true if the key was used.
  function onKey(event) {
    if (!state.layout?.items.length) return false;
    const item = itemOf(state.selected) ?? state.layout.items[0];
    const next = neighbour(state.layout, item, event);
    if (next) revealAndTell(next);
    else if (event.key === "+" || event.key === "=") zoomBy(1.25);
    else if (event.key === "-") zoomBy(1 / 1.25);
    else if (event.key === "0") fitWhole();
    else if (event.key === "Enter" || event.key === " ") revealAndTell(item);
    else if (event.key === "Escape") card.hide();
    else return isTreeKey(event);
    return true;
  }

  followPointer({ scope, stage, view, state, move, zoomBy, onSelect, mark, card });
  scope.observe(new ResizeObserver(newFrame(scope, relayout)), [stage]);

  return {
    pane,
    tools,
    draw,
    select,
    onKey,
    message: (element) => overlay.replaceChildren(...(element ? [element] : [])),
    focus: () => stage.focus({ preventScroll: true }),
    contains: (element) => element === stage,
    clear() {
      Object.assign(state, { step: null, layout: null, selected: null, hovered: null });
      svg.clear();
      canvas.clear();
      summary.textContent = "";
      faults.hidden = true;
    },
    onTheme() {
      palette = null;
      if (state.renderer === canvas) canvas.move(view);
    },
  };
}

function summaryOf(step) {
  const depth = Math.max(0, ...step.nodes.map((node) => node.depth));
  const parts = [`step ${step.index}`];
  if (step.nodes.length > 1) parts.push(`${step.nodes.length - 1} nodes beside the root`, `depth ${depth}`);
  parts.push(step.kernel, `accept length ${step.accept_len}`);
  return parts.join(" · ");
}

// Pointer: hover shows a card, a click selects, dragging pans, Ctrl + wheel or pinch zooms, a wheel pans while it can.
function followPointer({ scope, stage, view, state, move, zoomBy, onSelect, mark, card }) {
  let drag = null;
  const local = (event) => {
    const box = stage.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const under = (event) => {
    const [x, y] = local(event);
    return state.layout ? itemAt(state.layout, (x - view.x) / view.k, (y - view.y) / view.k) : null;
  };
  const hover = (item) => {
    if (item === state.hovered) return;
    state.hovered = item;
    stage.classList.toggle("ddviz-over-node", item !== null);
    mark();
    if (item) card.show(item, view, stage);
    else card.hide();
  };
  scope.listen(stage, "pointerdown", (event) => {
    if (event.button === 0) drag = { x: event.clientX, y: event.clientY, from: [view.x, view.y], moved: false };
  });
  scope.listen(stage, "pointermove", (event) => {
    if (!drag) return hover(under(event));
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    if (!drag.moved) stage.setPointerCapture(event.pointerId);
    drag.moved = true;
    Object.assign(view, { x: drag.from[0] + dx, y: drag.from[1] + dy, auto: false });
    move();
  });
  scope.listen(stage, "pointerup", (event) => {
    const item = drag && !drag.moved ? under(event) : null;
    drag = null;
    if (item) onSelect(item.index);
  });
  scope.listen(stage, "pointercancel", () => (drag = null));
  scope.listen(stage, "pointerleave", () => !drag && hover(null));
  scope.listen(stage, "dblclick", (event) => !under(event) && zoomBy(1.5, local(event)));
  scope.listen(
    stage,
    "wheel",
    (event) => {
      if (event.ctrlKey || event.metaKey) zoomBy(Math.exp(-clamp(event.deltaY, -50, 50) / 100), local(event));
      else if (!panByWheel(event, stage, state.layout, view)) return; // let the page scroll
      else move();
      event.preventDefault();
    },
    { passive: false },
  );
}

// Pans where the tree reaches beyond the stage; false where there is nothing more to see in that direction.
function panByWheel(event, stage, layout, view) {
  if (!layout) return false;
  const [dx, dy] = event.shiftKey ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
  const slide = (at, delta, size, room, pad) => {
    const [low, high] = [Math.min(pad, room - pad - size * view.k), pad];
    return clamp(at - delta, Math.min(low, at), Math.max(high, at));
  };
  const x = slide(view.x, dx, layout.width, stage.clientWidth, PAD.left);
  const y = slide(view.y, dy, layout.height, stage.clientHeight, PAD.top);
  if (x === view.x && y === view.y) return false;
  Object.assign(view, { x, y, auto: false });
  return true;
}

const isUp = ({ key, shiftKey, altKey }) => key === "[" || (key === "ArrowLeft" && (shiftKey || altKey));
const isDown = ({ key, shiftKey, altKey }) => key === "]" || (key === "ArrowRight" && (shiftKey || altKey));
const isTreeKey = (event) => isUp(event) || isDown(event) || event.key === "ArrowUp" || event.key === "ArrowDown";

// ↑ ↓ along the column, [ ] (or Shift with ← →) to the parent and the first child.
function neighbour(layout, item, event) {
  if (isUp(event)) return item.parent;
  if (isDown(event)) return item.children[0] ?? null;
  if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return null;
  const column = layout.items.filter((other) => other.depth === item.depth).sort((a, b) => a.y - b.y);
  return column[column.indexOf(item) + (event.key === "ArrowUp" ? -1 : 1)] ?? null;
}

// The hover card: a node's most wanted numbers beside it.
function createCard(parent) {
  const card = make("div", "ddviz-card");
  card.setAttribute("role", "tooltip");
  card.hidden = true;
  parent.append(card);
  return {
    hide: () => (card.hidden = true),
    show(item, view, stage) {
      card.replaceChildren(...cardLines(item));
      card.hidden = false;
      const [x, y] = [item.x * view.k + view.x, (item.y + item.h) * view.k + view.y + 10];
      const above = item.y * view.k + view.y - card.offsetHeight - 10;
      const top = y + card.offsetHeight <= stage.clientHeight - 4 || above < 4 ? y : above;
      card.style.left = `${clamp(x, 4, Math.max(4, stage.clientWidth - card.offsetWidth - 4))}px`;
      card.style.top = `${clamp(top, 4, Math.max(4, stage.clientHeight - card.offsetHeight - 4))}px`;
    },
  };
}

function cardLines({ index, node, status, sign }) {
  const name = append(make("div", "ddviz-card-name"), make("bdi", "ddviz-token", shorten(node.label, 40)));
  const state = make("div", `ddviz-status ddviz-text-${status}`, `${sign} ${status}`.trim());
  const facts =
    index === BONUS
      ? [["probability", probability(node.prob)], ["id", node.id]]
      : [["target", probability(node.target_prob)], ["draft", probability(node.draft_prob)], ["rank", node.rank], ["depth", node.depth]];
  const line = make("div", "ddviz-card-facts");
  for (const [label, value] of facts) {
    append(line, append(make("span"), make("i", "", label), ` ${value ?? ABSENT}`));
  }
  return [append(name, state), line, node.why ? make("div", "ddviz-muted", node.why) : null].filter(Boolean);
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
  const bar = append(make("span", "ddviz-legend-bar"), make("i"), "target probability");
  return append(legend, bar);
}
