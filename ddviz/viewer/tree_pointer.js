// Pointer: hover shows a card, a click selects, dragging pans, Ctrl + wheel or pinch zooms, a wheel pans while it can.

const CARD_AFTER = 120; // ms of resting on a node

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
    if (!item) {
      scope.cancel("card");
      card.hide();
    } else scope.later("card", CARD_AFTER, () => state.hovered === item && card.show(item, view, stage));
  };
  scope.listen(stage, "pointerdown", (event) => {
    if (event.button === 0) drag = { x: event.clientX, y: event.clientY, from: [view.x, view.y], moved: false };
  });
  scope.listen(stage, "pointermove", (event) => {
    if (!drag) return hover(under(event));
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    if (!state.layout) return;
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
      else if (!panByWheel(event, stage, state.layout, view))
        return; // let the page scroll
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
