// What stands in the tree's place while there is no step: a sentence, and how far the engine has come.

function createWaiting(parent) {
  const overlay = append(parent, make("div", "ddviz-overlay")).lastChild;
  const [card, says] = [make("div", "ddviz-waiting"), make("p")];
  const [bar, fill] = [make("div", "ddviz-progress"), make("span")];
  says.setAttribute("role", "status");
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-label", "Progress of the engine");
  append(overlay, append(card, says, append(bar, fill)));

  // { says, progress: 0 to 1 or null }, or null for nothing
  return function show(waiting) {
    overlay.hidden = !waiting;
    say(says, waiting?.says ?? "");
    bar.hidden = (waiting?.progress ?? null) === null;
    if (bar.hidden) return;
    bar.setAttribute("aria-valuenow", String(Math.round(100 * waiting.progress)));
    fill.style.width = `${100 * waiting.progress}%`;
  };
}
