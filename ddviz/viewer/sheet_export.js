// The Export sheet: the whole trace as a page, light or with every array, each with its size; the step as a graph.
//
// In:  options.exporter = { sizes() -> Promise of bytes by level, save({ to, level, step }) -> Promise }; it rejects
//      with an Error that says why. Without an exporter (an exported page) there is no such sheet.

const GRAPHS = [
  ["svg", "a picture that scales"],
  ["png", "a picture of pixels"],
  ["dot", "graphviz's source"],
  ["graphml", "for yEd, Gephi, networkx"],
  ["json", "networkx node-link data"],
];
const PAGES = [
  ["light", "tree, path and node probabilities"],
  ["standard", "every array of every step"],
];

function createExport(parent, { scope, root, state, exporter }) {
  if (!exporter) return {};
  const sheet = newSheet(root, scope, "Export");
  const says = make("p", "ddviz-sheet-says");
  says.setAttribute("role", "status");
  const sizes = {};
  const choice = (text, to, level) => {
    const label = level ?? (to === "graphml" ? "GraphML" : to.toUpperCase());
    const size = make("span", "ddviz-sheet-size");
    const line = button("ddviz-sheet-choice", "", `Export ${level ?? ""} ${to}`.replace("  ", " "), () => save(to, level));
    if (level) sizes[level] = size;
    return append(line, make("b", "", label), make("span", "ddviz-muted", text), size);
  };
  const stepTitle = make("h4", "ddviz-heading");
  append(
    sheet.body,
    make("h4", "ddviz-heading", "The whole trace, with this viewer, in one HTML file that opens offline"),
    append(make("div", "ddviz-sheet-choices"), ...PAGES.map(([level, text]) => choice(text, "html", level))),
    stepTitle,
    append(make("div", "ddviz-sheet-choices"), ...GRAPHS.map(([to, text]) => choice(text, to))),
    says,
  );

  async function open() {
    if (state.step === null) return;
    stepTitle.textContent = `The tree of step ${state.rows[state.step].index}`;
    say(says, "");
    sheet.open();
    for (const size of Object.values(sizes)) size.textContent = "…";
    try {
      const bytes = await exporter.sizes();
      for (const [level, size] of Object.entries(sizes)) size.textContent = `about ${megabytes(bytes[level])}`;
    } catch (error) {
      say(says, messageOf(error));
    }
  }

  async function save(to, level) {
    say(says, "Writing …");
    try {
      const name = await exporter.save({ to, level: level ?? null, step: state.step });
      say(says, `${name} is written.`);
    } catch (error) {
      say(says, messageOf(error));
    }
  }

  return { open };
}

function megabytes(bytes) {
  return bytes >= 100_000 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.round(bytes / 1000)} kB`;
}
