// Colours: light or dark as the page is, and the stylesheet's colours for canvases.

// Inside Gradio its `.dark` class decides, elsewhere the reader's system.
function watchTheme(scope, root, onChange) {
  const media = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () =>
    document.querySelector(".gradio-container") ? document.body.classList.contains("dark") : media.matches;
  const apply = () => {
    root.classList.toggle("ddviz-dark", isDark());
    onChange();
  };
  scope.listen(media, "change", apply);
  scope.observe(new MutationObserver(apply), [document.body, { attributes: true, attributeFilter: ["class"] }]);
  apply();
}

// Palette that is read once per theme: call it for the colours, `forget` them when the theme changes.
function newPalette(root) {
  let colours = null;
  const palette = () => (colours ??= paletteOf(root));
  palette.forget = () => (colours = null);
  return palette;
}

function paletteOf(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(`--ddviz-${name}`).trim();
  const names = ["ink", "muted", "faint", "line", "panel", "soft", "accepted", "accepted-ink", "rejected"];
  names.push("rejected-soft", "bonus", "bonus-soft", "focus", "edge", "warn", "wrong");
  return Object.fromEntries(names.map((name) => [name.replace(/-(.)/, (_, c) => c.toUpperCase()), read(name)]));
}

const FONTS = new WeakMap(); // context of a canvas -> its font

// Only where it differs: the browser would have the page's styles at hand each time.
function useFont(context, font) {
  if (FONTS.get(context) !== font) context.font = font;
  FONTS.set(context, font);
}

// A canvas as sharp as the screen; returns its context, scaled to CSS pixels and cleared.
function sharpContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  const context = canvas.getContext("2d");
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    FONTS.delete(context); // a canvas of another size has forgotten all
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
