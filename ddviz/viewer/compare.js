// Two viewers side by side, aligned by token position: a step chosen in one shows the step of the other that emitted
// the same place of the output. Above them, where the texts part, and both traces' numbers over each other.
//
// In:  a, b: { source, exporter, live } as `mount` takes them; diff as compare_function of the app gives it;
//      position to begin at; onLink(position). Out: { a, b (the viewers), goTo(position), state, destroy }.

function compare(element, { a, b, diff, position, onLink }) {
  const scope = newScope();
  const root = newRoot(element, scope);
  root.classList.add("ddviz-compare");
  const { stops } = diff;
  const state = { stop: stopAt(stops, position ?? diff.parts_at ?? 0) };
  const head = newCompareHead(root, { scope, diff, goBy, goTo });
  const box = append(root, make("div", "ddviz-pair")).lastChild;
  const viewers = { a: newSide("a", a), b: newSide("b", b) };
  watchTheme(scope, root, head.theme);
  show();

  function newSide(name, { source, exporter, live }) {
    const place = append(box, make("section", `ddviz-side-${name}`)).lastChild;
    place.setAttribute("aria-label", `Trace ${name.toUpperCase()}`);
    const viewer = mount(place, source, {
      exporter,
      live,
      step: stepOf(name) ?? 0,
      label: name.toUpperCase(),
      parting: diff[name].parting,
      onGo: (step) => followed(name, step),
    });
    scope.onClose(viewer.destroy);
    return viewer;
  }

  function stepOf(name) {
    return stops[state.stop]?.[name === "a" ? 1 : 2] ?? null;
  }

  // The reader chose a step in one viewer: the other follows.
  function followed(name, step) {
    const at = diff[name].starts[step];
    if (at === undefined) return; // it grew since the two were compared
    state.stop = stopAt(stops, at);
    update(name === "a" ? "b" : "a");
    show();
  }

  function update(name) {
    const step = stepOf(name);
    if (step !== null && step !== viewers[name].state().step) viewers[name].update({ step });
  }

  function goTo(at) {
    if (!stops.length) return;
    state.stop = stopAt(stops, at);
    for (const name of ["a", "b"]) update(name);
    show();
  }

  function goBy(way) {
    goTo(stops[clamp(state.stop + way, 0, stops.length - 1)]?.[0] ?? 0);
  }

  function show() {
    const at = stops[state.stop]?.[0] ?? null;
    head.mark(at);
    if (onLink && at !== null) scope.later("link", LINK_EVERY, () => onLink(at));
  }

  return {
    ...viewers,
    goTo,
    state: () => ({ position: stops[state.stop]?.[0] ?? null, a: viewers.a.state().step, b: viewers.b.state().step }),
    destroy: () => scope.close(),
  };
}

// Place of the last stop at or before a position.
function stopAt(stops, position) {
  let [low, high] = [0, Math.max(0, stops.length - 1)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (stops[middle][0] <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The sentence, the numbers, the buttons, the chart.
function newCompareHead(root, { scope, diff, goBy, goTo }) {
  const head = append(root, make("header", "ddviz-compare-head")).lastChild;
  const says = textsPartAt(diff);
  const counter = make("span", "ddviz-counter");
  const buttons = append(
    make("div", "ddviz-transport"),
    iconButton("previous", "Previous step of either", () => goBy(-1)),
    counter,
    iconButton("next", "Next step of either", () => goBy(1)),
  );
  if (diff.parts_at !== null) {
    append(buttons, button("", "≠ where they part", "Go to where the texts part", () => goTo(diff.parts_at)));
  }
  append(head, append(make("div", "ddviz-compare-says"), says, buttons), compareNumbers(diff));
  const chart = createCompareChart(head, { scope, root, diff, goTo, goBy });
  return {
    theme: chart.repaint,
    mark(at) {
      counter.textContent = at === null ? "no steps" : `token ${at}`;
      chart.mark(at);
    },
  };
}

function textsPartAt({ a, b, common, parts_at: at, same_prompt: samePrompt }) {
  const line = make("p", "ddviz-compare-sentence");
  if (!samePrompt) append(line, "The prompts differ. ");
  if (at !== null) {
    append(line, at ? `The texts are the same for ${counted(at)}, then part: ` : "The texts part at once: ");
    append(line, "A goes on with ", make("bdi", "ddviz-token ddviz-parting", shorten(a.parting.label, 30)));
    append(line, ", B with ", make("bdi", "ddviz-token ddviz-parting", shorten(b.parting.label, 30)), ".");
  } else if (a.tokens === b.tokens) append(line, `Both texts are the same, ${counted(common)}.`);
  else append(line, `The texts are the same as far as ${a.tokens < b.tokens ? "A" : "B"} goes, ${counted(common)}.`);
  return line;
}

function counted(tokens) {
  return `${tokens.toLocaleString("en")} token${tokens === 1 ? "" : "s"}`;
}

// What each trace came to, one row each.
function compareNumbers(diff) {
  const table = make("table", "ddviz-compare-numbers");
  const row = (tag, cells) => append(make("tr"), ...cells.map((cell) => make(tag, "", cell)));
  append(table, row("th", ["", "accept length", "steps", "tokens", "ms/token"]));
  for (const name of ["a", "b"]) {
    const { accept_lengths: lengths, ms, tokens, name: title } = diff[name];
    const mean = lengths.reduce((sum, length) => sum + length, 0) / (lengths.length || 1);
    const time = ms.reduce((sum, each) => sum + (each ?? 0), 0) / Math.max(1, tokens - 1);
    const cells = ["", mean.toFixed(2), lengths.length, tokens, time ? milliseconds(time) : ABSENT];
    const line = append(table, row("td", cells.map(String))).lastChild;
    append(line.firstChild, make("i", `ddviz-line-${name}`), ` ${name.toUpperCase()} `, make("bdi", "ddviz-muted", title));
  }
  return table;
}
