// The keyboard. A key is one line here: the keys, where they work, what they do, and how the legend names them.
//
//   where   "all": anywhere in the viewer, and while nothing on the page has the focus and the viewer is shown;
//           "view": anywhere in the viewer but in what scrolls; "tree": while the tree has the focus;
//           "wide": that, and in what is wider than its place, since left and right alone go to other steps
//   does    (commands, what has the focus); false = not used, the browser may have it
//   help    its line in the list of all keys; says: its words in the legend under the tree
//   needs   what `viewer` must have for it: an exported page can't be exported
//   paced   while the key is held, the next press counts when this step has been drawn, so that none is passed over
//
// Shift counts for named keys, and for the letters that have a line with it; Alt for all but signs: some keyboards
// need one of them, or AltGr, for [ and ].

const KEYS = [
  { keys: ["ArrowLeft"], where: "all", does: (c) => c.goBy(-1), paced: true, says: "← → step", help: "the step before" },
  { keys: ["ArrowRight"], where: "all", does: (c) => c.goBy(1), paced: true, help: "the next step" },
  { keys: ["Home"], where: "all", does: (c) => c.goTo(0), help: "the first step" },
  { keys: ["End"], where: "all", does: (c) => c.goToLast(), help: "the last step" },
  { keys: ["f"], where: "all", does: (c) => c.follow(), help: "follow the newest step" },
  { keys: ["p"], where: "all", does: (c) => c.play(), help: "play the steps, or halt" },
  { keys: ["g"], where: "all", does: (c) => c.sheet("go"), help: "go to a step by its number" },
  { keys: ["/"], where: "all", does: (c) => c.sheet("find"), help: "find token text" },
  { keys: ["l"], where: "all", does: (c) => c.jump("low"), help: "next step of low acceptance" },
  { keys: ["Shift+l"], where: "all", does: (c) => c.jump("low", -1), help: "the step of low acceptance before" },
  { keys: ["x"], where: "all", does: (c) => c.jump("top1"), help: "next rejected top-1" },
  { keys: ["Shift+x"], where: "all", does: (c) => c.jump("top1", -1), help: "the rejected top-1 before" },
  { keys: ["t"], where: "all", does: (c) => c.jump("tie"), help: "next near-tie" },
  { keys: ["Shift+t"], where: "all", does: (c) => c.jump("tie", -1), help: "the near-tie before" },
  { keys: ["d"], where: "all", does: (c) => c.finding(1), help: "next finding of the doctor" },
  { keys: ["Shift+d"], where: "all", does: (c) => c.finding(-1), help: "the finding before" },
  { keys: ["c"], where: "all", does: (c) => c.toggle("charts"), help: "charts of all steps" },
  { keys: ["b"], where: "all", does: (c) => c.toggle("batch"), help: "all rows of the step's batch" },
  { keys: ["e"], where: "all", does: (c) => c.sheet("exports"), help: "export", needs: "exporter" },
  { keys: ["?"], where: "all", does: (c) => c.sheet("keys"), says: "? all keys", help: "this list" },
  { keys: [","], where: "all", does: (c) => c.stageBy(-1), says: ", . stage", help: "the stage before" },
  { keys: ["."], where: "all", does: (c) => c.stageBy(1), help: "the next stage" },
  { keys: ["<"], where: "all", does: (c) => c.momentBy(-1), says: "< > within it", help: "back within the stage" },
  { keys: [">"], where: "all", does: (c) => c.momentBy(1), help: "on within the stage" },
  { keys: ["ArrowUp"], where: "view", does: (c) => c.tree().walk("up"), says: "↑ ↓ node", help: "the node above" },
  { keys: ["ArrowDown"], where: "view", does: (c) => c.tree().walk("down"), help: "the node below" },
  { keys: ["["], where: "all", does: (c) => c.tree().walk("parent"), says: "[ ] parent, child", help: "the parent node" },
  { keys: ["]"], where: "all", does: (c) => c.tree().walk("child"), help: "the first child" },
  { keys: ["z"], where: "all", does: (c) => c.fold(), says: "Z fold", help: "fold or unfold below the node" },
  { keys: ["Shift+z"], where: "all", does: (c) => c.unfoldAll(), help: "unfold everything" },
  { keys: ["Shift+ArrowLeft"], where: "wide", does: (c, target) => c.aside(target, -1), help: "in the tree the parent, else the part further left" },
  { keys: ["Shift+ArrowRight"], where: "wide", does: (c, target) => c.aside(target, 1), help: "in the tree the first child, else the part further right" },
  { keys: ["Alt+ArrowLeft"], where: "tree", does: (c) => c.tree().walk("parent"), help: "the parent" },
  { keys: ["Alt+ArrowRight"], where: "tree", does: (c) => c.tree().walk("child"), help: "the first child" },
  { keys: ["Enter", " "], where: "tree", does: (c) => c.tree().walk("here"), help: "the card of the node" },
  { keys: ["+", "="], where: "tree", does: (c) => c.tree().zoomIn(), help: "zoom in" },
  { keys: ["-"], where: "tree", does: (c) => c.tree().zoomOut(), help: "zoom out" },
  { keys: ["0"], where: "tree", does: (c) => c.tree().fit(), help: "fit the whole tree" },
  { keys: ["Escape"], where: "tree", does: (c) => c.tree().hideCard(), help: "hide the card" },
];
const BY_KEY = new Map(KEYS.flatMap((entry) => entry.keys.map((key) => [key, entry])));

// The keys that work in this viewer.
function keysOf(viewer) {
  return KEYS.filter(({ needs }) => !needs || viewer[needs]);
}

function followKeys(viewer) {
  const { scope, root, panels, commands, state } = viewer;
  const reaches = {
    all: () => true,
    view: (target) => panels.tree.hasFocus(target) || (root.contains(target) && !scrolls(target, root)),
    tree: (target) => panels.tree.hasFocus(target),
    wide: (target) => panels.tree.hasFocus(target) || wideBox(target, root) !== null,
  };
  scope.listen(root, "keydown", follow);
  // After a click beside everything the page's body gets the keys. Of two viewers the first takes them.
  scope.listen(document, "keydown", (event) => {
    if (event.target === document.body && root.getClientRects().length) follow(event);
  });

  function follow(event) {
    const target = event.composedPath()[0];
    if (event.defaultPrevented || isForOthers(event, target)) return;
    const entry = BY_KEY.get(keyOf(event));
    if (!keysOf(viewer).includes(entry) || !reaches[entry.where](target)) return;
    const isEarly = event.repeat && entry.paced && state.drawn !== state.step && !state.problems.step;
    if (isEarly || entry.does(commands, target) !== false) event.preventDefault();
  }
}

// Whether the arrow keys move something between here and the root: a pane of text that is longer than its place.
function scrolls(target, root) {
  for (let box = target; box && box !== root; box = box.parentElement) {
    if (box.scrollHeight > box.clientHeight && /auto|scroll/.test(getComputedStyle(box).overflowY)) return true;
  }
  return false;
}

// What around an element can be moved to the side; null where all of it is in view.
function wideBox(target, root) {
  for (let box = target; box && box !== root; box = box.parentElement) {
    if (box.scrollWidth > box.clientWidth && /auto|scroll/.test(getComputedStyle(box).overflowX)) return box;
  }
  return null;
}

// Shortcuts of the browser, typing, and buttons that are pressed by key.
function isForOthers(event, target) {
  if ((event.ctrlKey || event.metaKey) && !event.getModifierState("AltGraph")) return true;
  if (isInSheet(target)) return true;
  if (target.type === "range") return /^(Arrow|Home|End|Page)/.test(event.key); // moves its thumb
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable) return true;
  return target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ");
}

// "f", "[", "Shift+ArrowLeft".
function keyOf({ key, altKey, shiftKey }) {
  if (/^[^\w\s]$/.test(key)) return key;
  const alt = altKey ? "Alt+" : "";
  const shift = shiftKey ? "Shift+" : "";
  if (key.length > 1 || key === " ") return alt + shift + key;
  const letter = key.toLowerCase();
  return alt + (BY_KEY.has(shift + letter) ? shift + letter : letter);
}

function keysLegend() {
  return KEYS.flatMap(({ says }) => says ?? []).join("   ");
}
