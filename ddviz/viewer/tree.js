// The tree pane: draws a step, fits it, moves by keyboard.
//
// In:  step views; callbacks onSelect(index). Out: DOM below `parent`.
// Not here: where nodes stand (layout.js), how they are painted (tree_svg.js, tree_canvas.js), the pointer
// (tree_pointer.js), the hover card and legend (tree_card.js), the step as arrays (table.js), numbers (detail.js).

const SVG_LIMIT = 300; // nodes; above, the canvas is faster
const [SCALE_MIN, SCALE_MAX] = [0.66, 1.5]; // what fitting may choose: below, labels can't be read
const SCALE_READING = 0.85; // of a tree that can't be shown whole
const PAD = { left: 18, top: 18, right: 18, bottom: 18 };

function createTree(parent, { scope, root, onSelect }) {
  const pane = append(parent, make("section", "ddviz-pane ddviz-tree-pane")).lastChild;
  const head = make("header", "ddviz-pane-head");
  const [title, summary, tools] = [
    make("h3", "ddviz-title", "Draft tree"),
    make("span", "ddviz-muted"),
    make("div", "ddviz-tools"),
  ];
  const stage = make("div", "ddviz-plot");
  stage.tabIndex = 0;
  stage.setAttribute("role", "tree");
  stage.setAttribute("aria-label", "Draft tree");
  const faults = make("div", "ddviz-faults");
  const overlay = make("div", "ddviz-overlay");
  append(pane, append(head, title, summary, tools), faults, stage);
  let palette = null;
  const svg = createSvgTree(stage);
  const canvas = createCanvasTree(stage, () => (palette ??= paletteOf(root)));
  const card = createCard(stage);
  const hint = make("div", "ddviz-hint", "there is more: drag to move, 0 shows all");
  hint.hidden = true;
  append(stage, hint, overlay);
  const table = createTable(pane, { onSelect, palette: () => (palette ??= paletteOf(root)) });
  append(pane, createLegend());

  const state = { step: null, layout: null, renderer: svg, selected: null, hovered: null, byKeyboard: false };
  const view = { x: 0, y: 0, k: 1, auto: true };
  const size = { width: 0, height: 0 }; // of the stage; measured when it changes, since asking costs a page layout

  const arrays = button("", "arrays", "Show the step as arrays", () => {
    const on = pane.classList.toggle("ddviz-as-arrays");
    arrays.setAttribute("aria-pressed", String(on));
    if (on && state.step) table.draw(state.step);
  });
  append(
    tools,
    button("ddviz-icon ddviz-zoom", "−", "Zoom out (−)", () => zoomBy(1 / 1.25)),
    button("ddviz-icon ddviz-zoom", "+", "Zoom in (+)", () => zoomBy(1.25)),
    button("ddviz-zoom", "fit", "Fit the whole tree (0)", () => fitWhole()),
    arrays,
  );

  function draw(step, selected) {
    Object.assign(state, { step, selected, hovered: null });
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
    if (pane.classList.contains("ddviz-as-arrays")) table.draw(step);
    table.select(selected);
    relayout();
  }

  function relayout() {
    if (!state.step) return;
    const { width, height } = size;
    if (!width || !height) return;
    state.layout = layoutTree(state.step, width - PAD.left - PAD.right, height - PAD.top - PAD.bottom);
    state.renderer.draw(state.layout);
    if (view.auto) fitReadable(width, height);
    state.renderer.move(view);
    showHint();
    mark();
  }

  // The largest readable scale that shows everything; where there is none, the end of the accepted path is in view.
  function fitReadable(width, height) {
    const fitting = Math.floor(scaleToFit(width, height) * 20) / 20;
    Object.assign(view, { k: Math.min(fitting, SCALE_MAX), x: PAD.left, y: PAD.top });
    if (fitting >= SCALE_MIN) return;
    view.k = SCALE_READING;
    const end = state.layout.byIndex.get(BONUS) ?? state.layout.items[0];
    const put = (at, size, all, room, pad, share) =>
      clamp(share * room - (at + size) * view.k, Math.min(pad, room - pad - all * view.k), pad);
    view.x = put(end.x, end.w, state.layout.width, width, PAD.left, 0.95);
    view.y = put(end.y, end.h, state.layout.height, height, PAD.top, 0.6);
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
    state.renderer.paint();
    showHint();
    card.hide();
  }

  function showHint() {
    const { width, height } = state.layout;
    const [right, bottom] = [view.x + width * view.k, view.y + height * view.k];
    hint.hidden = view.x >= 0 && view.y >= 0 && right <= size.width && bottom <= size.height;
  }

  function zoomBy(factor, at) {
    if (!state.layout) return;
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
    state.renderer.paint();
    stage.ariaActiveDescendantElement = item ? state.renderer.elementOf(item) : null;
  }

  function select(index) {
    if (index === state.selected) return;
    state.selected = index;
    table.select(index);
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
  const onResize = newFrame(scope, () => {
    Object.assign(size, { width: stage.clientWidth, height: stage.clientHeight });
    relayout();
  });
  scope.observe(new ResizeObserver(onResize), [stage]);

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
      table.clear();
      hint.hidden = true;
      summary.textContent = "";
      faults.hidden = true;
    },
    onTheme() {
      palette = null;
      state.renderer.paint();
    },
  };
}

function summaryOf(step) {
  const depth = Math.max(0, ...step.nodes.map((node) => node.depth));
  const parts = [`step ${step.index}`, `accept length ${step.accept_len}`];
  if (step.nodes.length > 1) parts.push(`${step.nodes.length} nodes`, `depth ${depth}`);
  return [...parts, step.kernel].join(" · ");
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
