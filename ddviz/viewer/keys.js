// The keyboard. A key is one line here: the keys, where they work, what they do, and how the legend names them.
//
//   where   "all": anywhere in the viewer; "tree": while the tree has the focus
//   does    (commands); false = not used, the browser may have it
//
// Shift counts for named keys only, Alt for all but signs: some keyboards need one of them, or AltGr, for [ and ].

const KEYS = [
  { keys: ["ArrowLeft"], where: "all", does: (c) => c.goBy(-1), says: "← → step" },
  { keys: ["ArrowRight"], where: "all", does: (c) => c.goBy(1) },
  { keys: ["Home"], where: "all", does: (c) => c.goTo(0) },
  { keys: ["End"], where: "all", does: (c) => c.goToLast() },
  { keys: ["f"], where: "all", does: (c) => c.follow() },
  { keys: ["p"], where: "all", does: (c) => c.play() },
  { keys: [","], where: "all", does: (c) => c.stageBy(-1), says: ", . stage" },
  { keys: ["."], where: "all", does: (c) => c.stageBy(1) },
  { keys: ["<"], where: "all", does: (c) => c.momentBy(-1), says: "< > within it" },
  { keys: [">"], where: "all", does: (c) => c.momentBy(1) },
  { keys: ["ArrowUp"], where: "tree", does: (c) => c.tree().walk("up"), says: "↑ ↓ node" },
  { keys: ["ArrowDown"], where: "tree", does: (c) => c.tree().walk("down") },
  { keys: ["["], where: "all", does: (c) => c.tree().walk("parent"), says: "[ ] parent, child" },
  { keys: ["]"], where: "all", does: (c) => c.tree().walk("child") },
  { keys: ["Shift+ArrowLeft", "Alt+ArrowLeft"], where: "tree", does: (c) => c.tree().walk("parent") },
  { keys: ["Shift+ArrowRight", "Alt+ArrowRight"], where: "tree", does: (c) => c.tree().walk("child") },
  { keys: ["Enter", " "], where: "tree", does: (c) => c.tree().walk("here") },
  { keys: ["+", "="], where: "tree", does: (c) => c.tree().zoomIn() },
  { keys: ["-"], where: "tree", does: (c) => c.tree().zoomOut() },
  { keys: ["0"], where: "tree", does: (c) => c.tree().fit() },
  { keys: ["Escape"], where: "tree", does: (c) => c.tree().hideCard() },
];
const BY_KEY = new Map(KEYS.flatMap((entry) => entry.keys.map((key) => [key, entry])));

function followKeys({ scope, root, panels, commands }) {
  scope.listen(root, "keydown", (event) => {
    const target = event.composedPath()[0];
    if (event.defaultPrevented || isForOthers(event, target)) return;
    const entry = BY_KEY.get(keyOf(event));
    if (!entry || (entry.where === "tree" && !panels.tree.hasFocus(target))) return;
    if (entry.does(commands) !== false) event.preventDefault();
  });
}

// Shortcuts of the browser, typing, and buttons that are pressed by key.
function isForOthers(event, target) {
  if ((event.ctrlKey || event.metaKey) && !event.getModifierState("AltGraph")) return true;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable) return true;
  return target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ");
}

// "f", "[", "Shift+ArrowLeft".
function keyOf({ key, altKey, shiftKey }) {
  if (/^[^\w\s]$/.test(key)) return key;
  const alt = altKey ? "Alt+" : "";
  return alt + (key.length === 1 && key !== " " ? key.toLowerCase() : (shiftKey ? "Shift+" : "") + key);
}

function keysLegend() {
  return KEYS.flatMap(({ says }) => says ?? []).join("   ");
}
