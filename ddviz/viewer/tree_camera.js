// Where the tree stands on the stage: scale and place, fitted to each step until the reader moves it.
//
// In:  size of the stage, layout() of the present tree or null, onMove() after the reader moved it.
// Out: view { x, y, k, kx, auto }: (layout units * kx + x, layout units * k + y) = CSS pixels. kx is k but for a map: a
//      tree much higher than wide, seen whole, uses the width too.

const [SCALE_MIN, SCALE_MAX] = [0.66, 1.5]; // what fitting may choose: below, labels can't be read
const SCALE_READING = 0.85; // of a tree that can't be shown whole
const PAD = { left: 18, top: 18, right: 18, bottom: 18 };

function newCamera({ size, layout, onMove }) {
  const view = { x: 0, y: 0, k: 1, kx: 1, auto: true };

  function scaleToFit() {
    const { width, height } = layout();
    return Math.min((size.width - PAD.left - PAD.right) / width, (size.height - PAD.top - PAD.bottom) / height);
  }

  // The largest readable scale that shows everything; where there is none, the end of the accepted path is in view,
  // or `chosen`, an item that stands elsewhere.
  function fitReadable(chosen = null) {
    const fitting = Math.floor(scaleToFit() * 20) / 20;
    const scale = Math.min(fitting, SCALE_MAX);
    Object.assign(view, { k: scale, kx: scale, x: PAD.left, y: PAD.top });
    if (fitting >= SCALE_MIN) return;
    const { byIndex, items, width, height } = layout();
    const end = byIndex.get(BONUS) ?? items[0];
    view.k = view.kx = SCALE_READING;
    // From the beginning, where the end is in view then.
    const put = (at, extent, all, room, pad, share) =>
      (at + extent) * view.k <= room - 3 * pad
        ? pad
        : clamp(share * room - (at + extent) * view.k, Math.min(pad, room - pad - all * view.k), pad);
    view.x = put(end.x, end.w, width, size.width, PAD.left, 0.95);
    view.y = put(end.y, end.h, height, size.height, PAD.top, 0.6);
    if (!chosen) return;
    const [dx, dy] = wayTo(chosen);
    view.x += dx;
    view.y += dy;
  }

  function fitWhole() {
    view.auto = true;
    if (!layout()) return;
    fitReadable();
    const k = scaleToFit();
    const across = (size.width - PAD.left - PAD.right) / layout().width;
    const kx = k < READABLE_SCALE ? clamp(across, k, SCALE_READING) : k;
    if (k < SCALE_MIN) Object.assign(view, { k, kx, x: PAD.left, y: PAD.top });
    onMove();
  }

  function panTo(x, y) {
    if (!layout()) return;
    Object.assign(view, { x, y, auto: false });
    onMove();
  }

  // The point under the pointer stays where it is.
  function zoomBy(factor, [px, py] = [size.width / 2, size.height / 2]) {
    if (!layout()) return;
    const k = clamp(view.k * factor, Math.min(view.k, 0.05), 4);
    const isMap = view.kx > view.k && k < READABLE_SCALE; // its height grows first
    const kx = isMap ? Math.max(k, view.kx * Math.min(factor, 1)) : k;
    const [x, y] = [px - ((px - view.x) * kx) / view.kx, py - ((py - view.y) * k) / view.k];
    Object.assign(view, { k, kx });
    panTo(x, y);
  }

  // By a wheel: as far as the tree reaches beyond the stage; false where there is nothing more to see that way.
  function panBy(dx, dy) {
    if (!layout()) return false;
    const slide = (at, delta, all, room, pad) => {
      const [low, high] = [Math.min(pad, room - pad - all), pad];
      return clamp(at - delta, Math.min(low, at), Math.max(high, at));
    };
    const x = slide(view.x, dx, layout().width * view.kx, size.width, PAD.left);
    const y = slide(view.y, dy, layout().height * view.k, size.height, PAD.top);
    if (x === view.x && y === view.y) return false;
    panTo(x, y);
    return true;
  }

  // How far the tree must move, at least, for a node to be seen: [dx, dy].
  function wayTo(item) {
    const [left, top] = [item.x * view.kx + view.x, item.y * view.k + view.y];
    const [right, bottom] = [left + item.w * view.kx, top + item.h * view.k];
    const dx = Math.max(0, 8 - left) - Math.max(0, right - size.width + 8);
    const dy = Math.max(0, 8 - top) - Math.max(0, bottom - size.height + 8);
    return [dx, dy];
  }

  function reveal(item) {
    const [dx, dy] = wayTo(item);
    if (dx || dy) panTo(view.x + dx, view.y + dy);
  }

  function showsAll() {
    const { width, height } = layout();
    const [right, bottom] = [view.x + width * view.kx, view.y + height * view.k];
    return view.x >= 0 && view.y >= 0 && right <= size.width && bottom <= size.height;
  }

  return { view, fitReadable, fitWhole, panTo, panBy, zoomBy, reveal, showsAll, reset: () => (view.auto = true) };
}
