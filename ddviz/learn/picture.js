// A small still of a tree, drawn as the viewer draws it: for two trees side by side, and for trees that grow.

const STRIP_HEIGHT = 120; // px; what is lower shows the whole shape

// least: the smallest scale where there is height to read in; what is wider then is scrolled.
function newPicture(parent, scope, label, least = 0) {
  const box = append(parent, make("div", "ddviz-learn-picture")).lastChild;
  box.setAttribute("role", "img");
  const svg = createSvgTree(box);
  let [step, marked] = [null, null];
  const redraw = newFrame(scope, paint);
  scope.observe(new ResizeObserver(redraw), [box]);

  function paint() {
    const { clientWidth: width, clientHeight: height } = box;
    if (!step || !width || !height) return;
    const layout = layoutTree(step, width - 16, height - 16);
    const floor = height > STRIP_HEIGHT ? least : 0;
    const scale = Math.max(floor, Math.min(1.3, (width - 16) / layout.width, (height - 16) / layout.height));
    svg.draw(layout);
    svg.element.style.width = `${Math.max(width, Math.ceil(layout.width * scale) + 16)}px`;
    const y = floor ? 8 : 8 + Math.max(0, (height - 16 - layout.height * scale) / 2);
    svg.move({ x: 8, y, k: scale, kx: scale });
    svg.mark(layout.byIndex.get(marked) ?? null, null);
  }

  return {
    element: box,
    // nodes as step views or pictureNodes have them; says: the whole picture in words
    draw(drawn, { mark = null, says = label } = {}) {
      [step, marked] = [drawn, mark];
      box.setAttribute("aria-label", says);
      redraw();
    },
  };
}

// A step view's shape from nodes { token, parent, rank }, those in `path` accepted.
function pictureStep(nodes, labelOf, path = []) {
  const drawn = nodes.map(({ token, parent }, i) => ({
    i,
    id: token,
    label: labelOf(token),
    parent,
    children: [],
    status: path.includes(i) ? "accepted" : "unreached",
    target_prob: null,
    draft_prob: null,
    faults: [],
  }));
  drawn.forEach(({ parent, i }) => i > 0 && drawn[parent].children.push(i));
  return { nodes: drawn, bonus: null };
}
