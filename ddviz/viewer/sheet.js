// A sheet: a small dialog over the viewer. Escape closes it, the focus comes back to where it was, and the viewer's
// keys rest meanwhile (keys.js). What stands in it is the caller's.

function newSheet(root, scope, title) {
  const element = append(root, make("dialog", "ddviz-sheet")).lastChild;
  const [head, body] = [make("header", "ddviz-sheet-head"), make("div", "ddviz-sheet-body")];
  element.setAttribute("aria-label", title);
  append(head, make("h3", "ddviz-title", title), button("ddviz-icon", "×", "Close (Esc)", () => element.close()));
  append(element, head, body);
  let before = null;
  scope.listen(element, "close", () => before?.focus({ preventScroll: true }));
  scope.listen(element, "pointerdown", (event) => {
    if (event.target === element) element.close(); // beside it
  });

  function open() {
    if (element.open) return;
    before = root.getRootNode().activeElement ?? root;
    element.showModal();
  }

  return { element, body, open, close: () => element.close() };
}

function isInSheet(target) {
  return target.closest?.("dialog") !== null;
}
