// The sheets that find: token text (/), and a step by its number (g).
//
// Text is looked for in the output, across tokens and steps, and among the candidates of the step that is shown.
// Capitals count where the words asked for have any.

const FOUND_SHOWN = 100; // matches listed
const FOUND_AROUND = 28; // characters of the output on both sides of a match

function createFind(parent, { scope, root, state, commands }) {
  const sheet = newSheet(root, scope, "Find token text");
  const field = append(sheet.body, sheetField("Text of tokens", "text")).lastChild;
  const [says, list] = [make("p", "ddviz-sheet-says"), make("div", "ddviz-found")];
  says.setAttribute("role", "status");
  append(sheet.body, says, list);
  let output = null;

  scope.listen(field, "input", show);
  scope.listen(sheet.element, "keydown", (event) => {
    if (event.key === "Enter" && event.target === field) list.querySelector("button")?.click();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") walk(event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
  });

  function open() {
    output = outputOf(state.rows);
    sheet.open();
    field.focus();
    field.select();
    show();
  }

  function show() {
    const wanted = field.value;
    const nodes = wanted ? nodesWith(state.view, wanted) : [];
    const places = wanted ? placesOf(output.text, wanted) : [];
    list.replaceChildren(
      ...nodes.slice(0, FOUND_SHOWN).map((node) => nodeLine(node)),
      ...places.slice(0, FOUND_SHOWN).map((at) => placeLine(at, wanted.length)),
    );
    const more = Math.max(nodes.length, places.length) > FOUND_SHOWN ? `, the first ${FOUND_SHOWN} of each shown` : "";
    say(says, wanted ? `${places.length} in the output, ${nodes.length} in this step's tree${more}` : "");
  }

  function nodeLine(node) {
    const line = foundLine(`node ${node.i}`, () => commands.choose(node.i));
    return append(line, make("bdi", "ddviz-token", shorten(node.label, 60)), make("span", "ddviz-muted", ` ${statusSaid(node, statusOf(node))}`));
  }

  function placeLine(at, length) {
    const { row, place } = output.tokenAt(at);
    const line = foundLine(`step ${row.index}`, () => commands.goTo(row.i, place));
    const [before, after] = [output.text.slice(Math.max(0, at - FOUND_AROUND), at), output.text.slice(at + length)];
    const text = make("bdi", "ddviz-found-text");
    append(text, oneLine(before), make("mark", "", oneLine(output.text.slice(at, at + length))), oneLine(after.slice(0, FOUND_AROUND)));
    return append(line, text);
  }

  function foundLine(where, choose) {
    const line = button("ddviz-found-line", "", `Go to ${where}`, () => {
      sheet.close();
      choose();
    });
    line.removeAttribute("aria-label"); // its text says more
    return append(line, make("span", "ddviz-muted", where));
  }

  function walk(way) {
    const lines = [field, ...list.children];
    const at = lines.indexOf(root.getRootNode().activeElement);
    lines[clamp(at + way, 0, lines.length - 1)].focus();
  }

  return { open };
}

// The output as one text, and which token stands at a place of it.
function outputOf(rows) {
  const [parts, starts, tokens] = [[], [], []];
  let length = 0;
  for (const row of rows) {
    row.emitted.forEach(({ text }, place) => {
      starts.push(length);
      tokens.push({ row, place });
      parts.push(text);
      length += text.length;
    });
  }
  function tokenAt(at) {
    let [low, high] = [0, starts.length - 1]; // the last token that starts at or before it
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return tokens[low];
  }
  return { text: parts.join(""), tokenAt };
}

function placesOf(text, wanted) {
  const [where, what] = hasCapitals(wanted) ? [text, wanted] : [lower(text), lower(wanted)];
  const places = [];
  for (let at = where.indexOf(what); at >= 0; at = where.indexOf(what, at + what.length)) places.push(at);
  return places;
}

function nodesWith(view, wanted) {
  const same = hasCapitals(wanted) ? (label) => label : lower;
  const asLabel = same(wanted.replaceAll(" ", "·").replaceAll("\n", "⏎"));
  return (view?.nodes ?? []).filter((node) => same(node.label).includes(asLabel));
}

function hasCapitals(text) {
  return text !== lower(text);
}

// Letter by letter, so that places stay what they are: İ alone would become two.
function lower(text) {
  const low = text.toLowerCase();
  return low.length === text.length ? low : Array.from(text, (c) => (c.toLowerCase().length === c.length ? c.toLowerCase() : c)).join("");
}

function oneLine(text) {
  return text.replaceAll("\n", "⏎");
}

function createGo(parent, { scope, root, state, commands }) {
  const sheet = newSheet(root, scope, "Go to a step");
  const field = append(sheet.body, sheetField("Number of the step", "text")).lastChild;
  const says = append(sheet.body, make("p", "ddviz-sheet-says")).lastChild;
  field.inputMode = "numeric";
  says.setAttribute("role", "status");
  scope.listen(field, "keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const number = Number(field.value.trim() || NaN);
    const place = state.rows.findIndex((row) => row.index === number);
    if (place < 0) return say(says, `There is no step ${shorten(field.value, 20)}. ${rangeOf(state.rows)}.`);
    sheet.close();
    commands.goTo(place);
  });

  function open() {
    if (!state.rows.length) return;
    field.value = "";
    say(says, `${rangeOf(state.rows)}. Enter goes there.`);
    sheet.open();
    field.focus();
  }

  return { open };
}

function rangeOf(rows) {
  return `Steps are ${rows[0].index} to ${rows[rows.length - 1].index}`;
}

function sheetField(label, type) {
  const field = make("input", "ddviz-field");
  field.type = type;
  field.autocomplete = "off";
  field.spellcheck = false;
  field.placeholder = label;
  field.setAttribute("aria-label", label);
  return field;
}
