// The tree pane: draws a step, and joins what moves, shows and selects in it.
//
// Not here: where nodes stand (layout.js), how they are painted (tree_svg.js, tree_canvas.js), scale and place
// (tree_camera.js), the pointer (tree_pointer.js), the hover card and legend (tree_card.js), the step as arrays
// (table.js), numbers (detail.js).

const SVG_LIMIT = 300; // nodes; above, the canvas is faster
const WALKED_BY = "[ and ]: parent and first child; up and down: nodes of a depth; Z: fold; left and right: other steps";

function createTree(parent, viewer) {
  const { scope, root, commands, state: chosen } = viewer;
  const frame = newTreeFrame(parent);
  const { pane, stage } = frame;
  const palette = newPalette(root);
  const size = { width: 0, height: 0 }; // of the stage when last seen; measured then, since asking costs a page layout
  const svg = createSvgTree(stage);
  const canvas = createCanvasTree(stage, palette, size);
  const card = createCard(stage);
  stage.append(frame.hint);
  const table = createTable(pane, { onSelect: commands.choose, palette });
  const showWaiting = createWaiting(pane);
  pane.append(createLegend());

  const state = { step: null, layout: null, look: null, renderer: svg, selected: null, hovered: null };
  const flies = newFlight(scope, "tree"); // over the canvas: nothing of it needs laying out
  const camera = newCamera({ size, layout: () => state.layout, onMove });
  addTools();
  followPointer({ scope, stage, size, state, camera, mark, card, onSelect: commands.choose, onFold: commands.fold, onHover });
  scope.observe(new ResizeObserver(newFrame(scope, measure)), [stage]);

  function addTools() {
    append(
      frame.tools,
      button("ddviz-icon ddviz-zoom", "−", "Zoom out (−)", () => camera.zoomBy(1 / 1.25)),
      button("ddviz-icon ddviz-zoom", "+", "Zoom in (+)", () => camera.zoomBy(1.25)),
      button("ddviz-zoom", "fold", "Fold or unfold what hangs below the selected node (Z)", commands.fold),
      button("ddviz-zoom", "fit", "Fit the whole tree (0)", () => camera.fitWhole()),
      toggleButton("", "arrays", "Show the step as arrays", showArrays),
      toggleButton("", "wide", "Wide: give the tree the whole width", (on) => {
        parent.classList.toggle("ddviz-wide", on);
      }),
    );
  }

  function showArrays(on) {
    pane.classList.toggle("ddviz-as-arrays", on);
    if (!on) table.clear();
    else if (state.step) table.draw(state.step, state.selected);
  }

  function asArrays() {
    return pane.classList.contains("ddviz-as-arrays");
  }

  function draw({ view: step, node }) {
    const look = treeLook(chosen, step);
    const isSame = look.key === state.look?.key;
    state.look = look;
    const folded = foldedOf(chosen, step);
    if (folded.size && node !== null) unfoldTo(folded, step, node);
    const isFolded = String([...folded]);
    if (step === state.step && isFolded !== state.isFolded) {
      Object.assign(state, { isFolded, selected: node });
      relayout();
      const item = itemOf(node);
      if (item) camera.reveal(item);
      return;
    }
    state.isFolded = isFolded;
    if (step === state.step) {
      if (isSame) return select(node);
      state.selected = node;
      dress();
      table.select(node);
      return mark();
    }
    Object.assign(state, { step, selected: node });
    useRenderer(flies(rest) || step.nodes.length > SVG_LIMIT ? canvas : svg);
    relayout();
    const item = chosen.node === null ? null : itemOf(node); // asked for, where the reader had moved the tree
    if (item && !camera.view.auto) camera.reveal(item);
    frame.write(step); // after, since labels on a canvas have the page laid out first
    if (asArrays()) table.draw(step, node);
    return undefined;
  }

  function useRenderer(renderer) {
    if (renderer === state.renderer) return;
    state.renderer = renderer;
    stage.classList.toggle("ddviz-uses-canvas", renderer === canvas);
  }

  // Steps flew by and rest: a tree of a usual size has elements again.
  function rest() {
    if (!state.step || state.step.nodes.length > SVG_LIMIT) return;
    useRenderer(svg);
    dress();
    svg.move(camera.view);
    mark();
    viewer.panels.highlight.draw({ node: state.selected });
  }

  function measure() {
    const { clientWidth: width, clientHeight: height } = stage;
    if (!width || !height) return; // hidden: steps are laid out as they were, so that keys still find their way
    Object.assign(size, { width, height });
    relayout();
  }

  function relayout() {
    if (!state.step || !size.width) return;
    unhover();
    const [width, height] = [size.width - PAD.left - PAD.right, size.height - PAD.top - PAD.bottom];
    state.layout = layoutTree(state.step, width, height, foldedOf(chosen, state.step));
    dress();
    if (camera.view.auto) camera.fitReadable(itemOf(state.selected));
    state.renderer.move(camera.view);
    frame.hint.hidden = camera.showsAll();
    mark();
  }

  // Ghosts and links of the stage, on the layout that stands.
  function dress() {
    if (!state.layout) return;
    const { layout, look, step } = state;
    for (const item of layout.items) item.ghost = look.ghostOf(item.index);
    layout.treeEdges ??= layout.edges;
    layout.edges = look.links && hasLinks(step) ? linkEdges(layout, step) : layout.treeEdges;
    for (const edge of layout.edges) edge.ghost = edge.to.ghost;
    state.renderer.draw(layout);
  }

  function onHover(item) {
    commands.hover(item ? [item.index] : []);
  }

  function onMove() {
    state.renderer.move(camera.view);
    state.renderer.paint();
    frame.hint.hidden = camera.showsAll();
    card.hide();
  }

  function unhover() {
    if (state.hovered) commands.hover([]);
    state.hovered = null;
    stage.classList.remove("ddviz-over-node");
    card.hide();
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

  // Moves in the drawing as the eye does; false where there is no tree.
  function walk(way) {
    if (!state.layout?.items.length) return false;
    const from = chosen.view === state.step ? nodeShown(chosen) : state.selected; // perhaps not drawn yet
    const item = itemOf(from) ?? state.layout.items[0];
    if (way === "child" && item.hidden) return commands.fold();
    const next = neighbour(state.layout, item, way);
    if (!next) return true;
    camera.reveal(next);
    commands.choose(next.index);
    card.show(next, camera.view, size);
    return true;
  }

  return {
    draw,
    commands: {
      walk,
      zoomIn: () => camera.zoomBy(1.25),
      zoomOut: () => camera.zoomBy(1 / 1.25),
      fit: () => camera.fitWhole(),
      hideCard: () => card.hide(),
    },
    hasFocus: (element) => element === stage,
    focus: () => (asArrays() ? table.element : stage).focus({ preventScroll: true }),
    hover([index = null]) {
      const item = itemOf(index);
      if (item === state.hovered) return;
      state.hovered = item;
      mark();
    },
    status: ({ waiting }) => showWaiting(waiting),
    clear() {
      Object.assign(state, { step: null, layout: null, selected: null });
      unhover();
      camera.reset();
      svg.clear();
      canvas.clear();
      table.clear();
      frame.clear();
    },
    theme() {
      palette.forget();
      state.renderer.paint();
      table.repaint();
    },
  };
}

function hasLinks({ nodes }) {
  return nodes.some(({ next_token: child }) => child !== null);
}

// Head, faults and the stage that the tree is painted on.
function newTreeFrame(parent) {
  const pane = append(parent, make("section", "ddviz-pane ddviz-tree-pane")).lastChild;
  const [title, summary] = [make("h3", "ddviz-title"), make("span", "ddviz-muted")];
  const [tools, faults] = [make("div", "ddviz-tools"), make("div", "ddviz-faults")];
  const stage = make("div", "ddviz-plot");
  const hint = make("div", "ddviz-hint", "there is more: drag to move, 0 shows all");
  stage.tabIndex = 0;
  stage.setAttribute("role", "tree");
  stage.setAttribute("aria-description", WALKED_BY);
  append(pane, append(make("header", "ddviz-pane-head"), title, summary, tools), faults, stage);

  function write(step) {
    const name = step ? `Draft tree of step ${step.index}` : "Draft tree";
    stage.setAttribute("aria-label", name);
    title.textContent = step?.nodes.length === 1 ? "One token, no draft" : "Draft tree";
    summary.textContent = step ? summaryOf(step) : "";
    faults.textContent = step ? step.faults.join(" · ") : "";
    faults.hidden = !faults.textContent;
  }

  function clear() {
    write(null);
    hint.hidden = true;
  }

  clear();
  return { pane, tools, stage, hint, write, clear };
}

function summaryOf(step) {
  const depth = Math.max(0, ...step.nodes.map((node) => node.depth));
  const parts = [`step ${step.index}`, `accept length ${step.accept_len}`];
  if (step.nodes.length > 1) parts.push(`${step.nodes.length} nodes`, `depth ${depth}`);
  return [...parts, step.kernel].join(" · ");
}

// The node up or down in the column, the parent, the first child, or the node itself; null where there is none.
function neighbour(layout, item, way) {
  if (way === "here") return item;
  if (way === "parent") return item.parent;
  if (way === "child" || (way === "down" && !item.parent)) return item.children[0] ?? null; // the root is alone
  const column = layout.items.filter((other) => other.depth === item.depth).sort((a, b) => a.y - b.y);
  return column[column.indexOf(item) + (way === "up" ? -1 : 1)] ?? null;
}
