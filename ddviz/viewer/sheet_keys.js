// The sheet of all keys (?), read from KEYS.

const KEY_NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", " ": "Space", Escape: "Esc" };

function createKeySheet(parent, viewer) {
  const { scope, root } = viewer;
  const sheet = newSheet(root, scope, "Keys");
  sheet.element.classList.add("ddviz-sheet-keys");
  reachable(sheet.body, "All keys"); // longer than a low window
  for (const [where, title] of [
    ["all", "Anywhere"],
    ["view", "Anywhere but in what scrolls"],
    ["wide", "In the tree, and in what is wider than its place"],
    ["tree", "While the tree has the focus"],
  ]) {
    append(sheet.body, make("h4", "ddviz-heading", title), keyList(keysOf(viewer).filter((entry) => entry.where === where)));
  }
  append(sheet.body, make("p", "ddviz-sheet-says", "Tab goes from part to part; Esc closes what is open."));
  return { open: sheet.open };
}

function keyList(entries) {
  const list = make("dl", "ddviz-key-list");
  for (const { keys, help, says } of entries) {
    const names = make("dt");
    keys.forEach((key, k) => append(names, k ? " " : null, make("kbd", "", nameOfKey(key))));
    append(list, append(make("div"), names, make("dd", "", help ?? says ?? "")));
  }
  return list;
}

function nameOfKey(key) {
  const parts = key.length > 1 ? key.split("+") : [key];
  return parts.map((part) => KEY_NAMES[part] ?? (/^[a-z]$/.test(part) ? part.toUpperCase() : part)).join("+");
}
