// The link: everything that is chosen, as the part of an address after its #. A copied link opens the same again.
//
//   #trace=sample:quicksort&step=5&stage=verify&node=3&folded=1.4&panels=arrays,wide
//   #trace=sample:one&with=sample:other&position=12          two traces side by side, at a token
//
// In:  viewer's state; its toggle buttons, which are named by their labels (dom.js). `trace` is the app's.
// Not here: where links are kept (the app, the exported page).

const LINK_EVERY = 300; // ms; browsers refuse more than a few changes of the address per second

function readLink(text) {
  const fields = new URLSearchParams(text.replace(/^#/, ""));
  const wrong = [];
  const whole = (name) => {
    const text = fields.get(name);
    if (/^\d{1,9}$/.test(text ?? "")) return Number(text);
    if (text) wrong.push(`There is no ${name} ${shorten(text, 20)}.`);
    return null;
  };
  const stage = fields.get("stage");
  if (stage && !isStage(stage)) wrong.push(`There is no stage ${shorten(stage, 20)}.`);
  return {
    trace: fields.get("trace"),
    with: fields.get("with"),
    position: whole("position"),
    step: whole("step"),
    node: fields.get("node") === BONUS ? BONUS : whole("node"),
    stage,
    folded: (fields.get("folded") ?? "").split(".").filter((node) => /^\d{1,9}$/.test(node)).map(Number),
    panels: fields.get("panels")?.split(",") ?? [],
    wrong, // sentences
  };
}

function writeLink({ panels = [], ...chosen }) {
  const fields = new URLSearchParams();
  for (const name of ["trace", "with", "position", "step", "stage", "node", "folded"]) {
    const value = chosen[name];
    if (value !== null && value !== undefined) fields.set(name, value);
  }
  if (panels.length) fields.set("panels", panels.join(","));
  return `#${fields}`.replaceAll("%3A", ":").replaceAll("%2C", ",");
}

// Tells onLink of a change, and sets the panels that a link names.
function newLinkKeeper(viewer, wantedPanels = []) {
  const { scope, root, state, onLink } = viewer;
  const toggles = () => Array.from(root.querySelectorAll("[data-toggle]"));
  const isOn = (toggle) => toggle.getAttribute("aria-pressed") === "true";
  let told = null;

  function link() {
    const panels = toggles().filter(isOn).map((toggle) => toggle.dataset.toggle);
    const folded = state.view && state.view.i === state.step ? [...foldedOf(state, state.view)].join(".") : "";
    // who follows goes on following
    const chosen = state.follow ? {} : { step: state.step, node: state.node, folded: folded || null };
    return { ...chosen, stage: state.stage, panels };
  }

  function tell() {
    const text = state.step === null ? null : writeLink(link());
    if (text !== null && text !== told) onLink(link());
    told = text;
  }

  // Of several views the first is shown: there is room for one.
  function setPanels(names) {
    const known = new Map(toggles().map((toggle) => [toggle.dataset.toggle, toggle]));
    const lacking = names.filter((name) => name && !known.has(name));
    const [first, ...others] = names.filter((name) => viewer.views.contains(known.get(name) ?? null));
    for (const [name, toggle] of known) {
      if (isOn(toggle) !== (names.includes(name) && !others.includes(name))) toggle.click();
    }
    const says = lacking.map((name) => `There is no panel ${shorten(name, 20)}.`);
    if (others.length) says.push(`${[first, ...others].join(" and ")} can't be shown together; this is ${first}.`);
    if (says.length) viewer.feed.mislead(...says);
  }

  const changed = () => onLink && scope.later("link", LINK_EVERY, tell);
  if (wantedPanels.length) setPanels(wantedPanels);
  scope.listen(root, "click", changed); // toggles
  return { changed, setPanels };
}
