// Small tools for elements. Model text reaches the page through `textContent` or a canvas only: no function here
// takes HTML.

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

// A button that stays down: `onToggle(isOn)` at every press. Its label names it in a link (link.js).
function toggleButton(className, label, title, onToggle) {
  const element = button(className, label, title, () => {
    const isOn = element.getAttribute("aria-pressed") !== "true";
    element.setAttribute("aria-pressed", String(isOn));
    onToggle(isOn);
  });
  element.setAttribute("aria-pressed", "false");
  element.dataset.toggle = label;
  return element;
}

// Drawn, since not every system's fonts have such signs.
const ICONS = {
  first: "M3 3V13M13 3L6 8L13 13Z",
  previous: "M10.5 3L5 8L10.5 13", // open, so that it is not taken for play
  next: "M5.5 3L11 8L5.5 13",
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
  if (name === "previous" || name === "next") path.setAttribute("fill", "none");
  return append(button("ddviz-icon", "", title, onClick), append(svg, path));
}

// A part of the page that the keyboard can reach and scroll, as tall as its place.
function newScroller(className, label) {
  return reachable(make("div", `ddviz-scroller ${className}`.trim()), label);
}

function reachable(element, label) {
  element.tabIndex = 0;
  element.setAttribute("role", "region");
  element.setAttribute("aria-label", label);
  return element;
}

// Scrolls the pane alone, never the page around it.
function keepInView(scroller, element, margin = 8) {
  const [box, own] = [scroller.getBoundingClientRect(), element.getBoundingClientRect()];
  if (own.top < box.top + margin) scroller.scrollTop -= box.top - own.top + box.height / 3;
  else if (own.bottom > box.bottom - margin) scroller.scrollTop += own.bottom - box.bottom + box.height / 3;
}

// Makes what stands in a box like `next`, changing only what differs: the browser then lays out and paints that alone.
// For parts without listeners, which stay with their old elements.
function rewrite(box, next) {
  next.forEach((wanted, k) => {
    const old = box.childNodes[k];
    if (!old) box.append(wanted);
    else if (old.nodeName !== wanted.nodeName) old.replaceWith(wanted);
    else if (old.nodeType === Node.TEXT_NODE) old.data === wanted.data || (old.data = wanted.data);
    else {
      for (const { name } of Array.from(old.attributes)) if (!wanted.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of wanted.attributes) {
        if (old.getAttribute(name) === value) continue;
        if (name === "style") old.style.cssText = value; // an exported page allows no style attribute to be set
        else old.setAttribute(name, value);
      }
      rewrite(old, Array.from(wanted.childNodes));
    }
  });
  while (box.childNodes.length > next.length) box.lastChild.remove();
}

// A status line says a new text once: writing the same again would have a screen reader repeat it.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

// Makes a change; where that takes away what has the focus, `heir` gets it, since keys would go nowhere.
function keepFocus(heir, change) {
  const focused = heir.getRootNode().activeElement;
  change();
  if (focused && (!focused.isConnected || focused.closest("[hidden]"))) heir.focus({ preventScroll: true });
}
