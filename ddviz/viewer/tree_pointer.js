// Pointer: hover shows a card, a click selects, dragging pans, Ctrl + wheel or pinch zooms, a wheel pans while it can.

const CARD_AFTER = 120; // ms of resting on a node

function followPointer({ scope, stage, size, state, camera, mark, card, onSelect, onFold, onHover }) {
  const { view } = camera;
  let drag = null; // { x, y, from, moved }
  const local = (event) => {
    const box = stage.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const under = (event) => {
    const [x, y] = local(event);
    return state.layout ? itemAt(state.layout, (x - view.x) / view.kx, (y - view.y) / view.k) : null;
  };

  // At the right of a folded node, where the count of what it hides stands.
  function isOnNote(item, event) {
    return (local(event)[0] - view.x) / view.kx > item.x + item.w - NOTE_WIDTH - 12;
  }

  function hover(item) {
    if (item === state.hovered) return;
    state.hovered = item;
    stage.classList.toggle("ddviz-over-node", item !== null);
    mark();
    onHover(item);
    if (!item) {
      scope.cancel("card");
      card.hide();
    } else scope.later("card", CARD_AFTER, () => state.hovered === item && card.show(item, view, size));
  }

  function dragTo(event) {
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    if (!drag.moved) stage.setPointerCapture(event.pointerId);
    drag.moved = true;
    camera.panTo(drag.from[0] + dx, drag.from[1] + dy);
  }

  scope.listen(stage, "pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    drag = { x: event.clientX, y: event.clientY, from: [view.x, view.y], moved: false };
  });
  scope.listen(stage, "pointermove", (event) => {
    if (!event.isPrimary) return;
    if (drag) dragTo(event);
    else hover(under(event));
  });
  scope.listen(stage, "pointerup", (event) => {
    if (!event.isPrimary) return;
    const item = drag && !drag.moved ? under(event) : null;
    drag = null;
    if (!item) return;
    onSelect(item.index);
    if (item.hidden && event.detail < 2 && isOnNote(item, event)) onFold();
  });
  scope.listen(stage, "pointercancel", () => (drag = null));
  scope.listen(stage, "pointerleave", () => !drag && hover(null));
  // On a node, which the first click has selected: fold it or unfold it.
  scope.listen(stage, "dblclick", (event) => (under(event) ? onFold() : camera.zoomBy(1.5, local(event))));
  scope.listen(stage, "wheel", (event) => turnWheel(event) && event.preventDefault(), { passive: false });

  // False: the page may scroll.
  function turnWheel(event) {
    if (!event.ctrlKey && !event.metaKey) {
      return event.shiftKey ? camera.panBy(event.deltaY, 0) : camera.panBy(event.deltaX, event.deltaY);
    }
    camera.zoomBy(Math.exp(-clamp(event.deltaY, -50, 50) / 100), local(event));
    return true;
  }
}
