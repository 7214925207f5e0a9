// Cross-highlighting: whatever stands for a node carries its number in data-node ("3", "bonus", or "1 4 7" where it
// stands for several), and all of it lights up together: the hovered or focused nodes, and the selected one.
//
// Not here: canvases, which have no elements; they are told by `hover` (tree.js, mask.js).

function createHighlight(_, { scope, root, commands, state }) {
  const lit = newMark(root, "ddviz-lit");
  const chosen = newMark(root, "ddviz-chosen");

  // The tree has a pointer of its own.
  const follow = (event) => {
    const element = event.composedPath()[0].closest?.("[data-node], .ddviz-plot");
    if (!element?.classList.contains("ddviz-plot") && !element?.closest(".ddviz-plot")) {
      commands.hover(element ? nodesOf(element) : []);
    }
  };
  scope.listen(root, "pointerover", follow);
  scope.listen(root, "focusin", follow);
  scope.listen(root, "focusout", () => commands.hover([]));
  scope.listen(root, "pointerleave", () => commands.hover([]));

  return {
    hover: lit,
    draw({ node }) {
      chosen(node === null ? [] : [node]); // again, since elements are new after a drawing
      lit(state.hovered);
    },
    clear() {
      commands.hover([]);
      chosen([]);
    },
  };
}

function nodesOf(element) {
  return element.dataset.node.split(" ").map((name) => (name === BONUS ? name : Number(name)));
}

// mark(nodes) moves a class from the elements of the nodes before to those of these.
function newMark(root, className) {
  let marked = [];
  return function mark(nodes) {
    for (const element of marked) element.classList.remove(className);
    marked = nodes.flatMap((node) => Array.from(root.querySelectorAll(`[data-node~="${node}"]`)));
    for (const element of marked) element.classList.add(className);
  };
}
