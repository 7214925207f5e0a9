// Small tools: elements, numbers as text, theme, and a scope that remembers what must be undone at destroy().
// Model text reaches the page through `textContent` or a canvas only: no function here takes HTML.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function makeSvg(tag, className) {
  const element = document.createElementNS(SVG_NAMESPACE, tag);
  if (className) element.setAttribute("class", className);
  return element;
}

function append(parent, ...children) {
  parent.append(...children.filter((child) => child !== null && child !== undefined));
  return parent;
}

function button(className, label, title, onClick) {
  const element = make("button", `ddviz-button ${className}`, label);
  element.type = "button";
  element.title = title;
  element.setAttribute("aria-label", title);
  element.addEventListener("click", onClick);
  return element;
}

// Drawn, since not every system's fonts have such signs.
const ICONS = {
  first: "M3 3V13M13 3L6 8L13 13Z",
  previous: "M11 3L4 8L11 13Z",
  next: "M5 3L12 8L5 13Z",
  last: "M13 3V13M3 3L10 8L3 13Z",
  play: "M4 2.5L13 8L4 13.5Z",
  pause: "M5 3V13M11 3V13",
};

function iconButton(name, title, onClick) {
  const svg = makeSvg("svg", "ddviz-glyph");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = makeSvg("path");
  path.setAttribute("d", ICONS[name]);
  return append(button("ddviz-icon", "", title, onClick), append(svg, path));
}

// Listeners, observers, timers: everything that outlives a call is made here and ends with `close`.
function newScope() {
  const undo = [];
  const timers = new Map();
  const scope = {
    closed: false,
    listen(target, type, handler, options) {
      target.addEventListener(type, handler, options);
      undo.push(() => target.removeEventListener(type, handler, options));
    },
    observe(observer, ...targets) {
      for (const [target, options] of targets) observer.observe(target, options);
      undo.push(() => observer.disconnect());
    },
    later(name, ms, action) {
      clearTimeout(timers.get(name));
      timers.set(name, setTimeout(action, ms));
    },
    cancel(name) {
      clearTimeout(timers.get(name));
      timers.delete(name);
    },
    onClose(action) {
      undo.push(action);
    },
    close() {
      scope.closed = true;
      for (const timer of timers.values()) clearTimeout(timer);
      timers.clear();
      for (const action of undo.splice(0)) action();
    },
  };
  return scope;
}

// One drawing per frame, however often it is asked for.
function newFrame(scope, draw) {
  let handle = null;
  scope.onClose(() => cancelAnimationFrame(handle));
  return () => {
    handle ??= requestAnimationFrame(() => {
      handle = null;
      draw();
    });
  };
}

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

// The colours as the stylesheet has them, for canvases.
function paletteOf(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(`--ddviz-${name}`).trim();
  const names = ["ink", "muted", "faint", "line", "panel", "soft", "accepted", "accepted-ink", "rejected"];
  names.push("rejected-soft", "bonus", "bonus-soft", "focus", "edge", "warn");
  return Object.fromEntries(names.map((name) => [name.replace(/-(.)/, (_, c) => c.toUpperCase()), read(name)]));
}

// A canvas as sharp as the screen; returns its context, scaled to CSS pixels and cleared.
function sharpContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const ABSENT = "–";

// 0.8230, 0.000412, 1.2e-9: four digits, and never a false zero.
function precise(value, digits = 4) {
  if (value === null || value === undefined) return ABSENT;
  if (Number.isInteger(value)) return String(value);
  const magnitude = Math.abs(value);
  if (magnitude < 1e-4 || magnitude >= 1e7) return value.toExponential(2);
  return value.toPrecision(Math.max(digits, Math.ceil(Math.log10(magnitude))));
}

function probability(value) {
  if (value === null || value === undefined) return ABSENT;
  if (value === 0 || value === 1) return String(value);
  return value >= 0.0005 ? value.toFixed(3) : value.toExponential(1);
}

function milliseconds(value) {
  if (value === null || value === undefined) return ABSENT;
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function shorten(text, most) {
  const characters = Array.from(text);
  return characters.length <= most ? text : characters.slice(0, most - 1).join("") + "…";
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
