// The text pane: the prompt, then the output, one span per token. Append only: what stands is never drawn again.
// Steps alternate between two tints; accepted tokens stand plain, the bonus has a dotted underline.

const PROMPT_SHOWN = 280; // characters before a long prompt is folded
const BLOCK_TOKENS = 250; // a new block begins at the next line end, so that a browser lays out little at a time

function createText(parent, { scope, commands }) {
  const pane = append(parent, make("section", "ddviz-pane ddviz-text-pane")).lastChild;
  const head = append(make("header", "ddviz-pane-head"), make("h3", "ddviz-title", "Text"));
  const count = append(head, make("span", "ddviz-muted")).lastChild;
  const scroller = newScroller("", "Prompt and output");
  const prompt = make("div", "ddviz-prompt");
  const output = make("div", "ddviz-output");
  append(pane, head, append(scroller, prompt, output));
  const [writer, drawPrompt] = [newWriter(output), newPrompt(prompt)];
  let [tail, current, picked, tokens] = [null, [], [], 0];

  scope.listen(output, "click", (event) => {
    const token = event.target.closest(".ddviz-t");
    const chunk = token?.closest(".ddviz-chunk");
    const selection = output.getRootNode().getSelection?.() ?? getSelection();
    if (!chunk || String(selection)) return; // a selection is for copying
    commands.goTo(Number(chunk.dataset.step), Number(token.dataset.place));
  });

  function begin({ prompt: pieces = [], first = null, header = null }) {
    [tail, current, picked, tokens] = [null, [], [], first ? 1 : 0];
    drawPrompt(pieces.join(""), header?.notes ?? []);
    writer.begin(first);
    count.textContent = "";
  }

  // Tokens of the step that is shown carry their node, so that they light up with it.
  function markStep(view) {
    for (const chunk of current) chunk.classList.remove("ddviz-current");
    for (const token of current.flatMap(tokensOf)) delete token.dataset.node;
    current = writer.chunks(view.i);
    for (const chunk of current) chunk.classList.add("ddviz-current");
    for (const token of current.flatMap(tokensOf)) token.dataset.node = nodeOfPlace(view, Number(token.dataset.place));
  }

  function tokensOf(chunk) {
    return Array.from(chunk.querySelectorAll("[data-place]"));
  }

  function markToken(place) {
    for (const token of picked) token.classList.remove("ddviz-picked");
    picked = current.flatMap((chunk) => Array.from(chunk.querySelectorAll(`[data-place="${place}"]`)));
    for (const token of picked) token.classList.add("ddviz-picked");
  }

  return {
    begin,
    clear: () => begin({}),
    rows(fresh) {
      for (const row of fresh) {
        writer.write(row);
        tokens += row.emitted.length;
      }
      count.textContent = tokens ? `${tokens.toLocaleString("en")} tokens` : "";
    },
    end(reason, rest) {
      tail?.remove();
      tail = append(writer.block(), make("span", "ddviz-end", reason)).lastChild;
      if (rest) tail.before(make("span", "ddviz-muted", rest));
    },
    draw({ view, place, follow }) {
      markStep(view);
      if (follow) scroller.scrollTop = scroller.scrollHeight;
      else if (current.length) keepInView(scroller, current[0]);
      markToken(place);
    },
  };
}

// Appends tokens: a span per token, in a span per step, in blocks that end with a line.
function newWriter(output) {
  let [block, chunk, count, byStep] = [null, null, 0, []];

  function newBlock() {
    block = output.appendChild(make("div", "ddviz-text-block"));
    count = 0;
  }

  function newChunk(row) {
    chunk = make("span", `ddviz-chunk ddviz-tint-${row.i % 2}`);
    chunk.dataset.step = row.i;
    byStep[row.i].push(block.appendChild(chunk));
  }

  // A token's leading space stands before its span (and before its step's), so that tints and underlines hug words.
  function writeToken({ text, kind }, place, row) {
    const spaced = text.startsWith(" ") && text.length > 1;
    const isFirst = place === 0 || !row;
    if (spaced) append(isFirst ? block : chunk, " ");
    if (row && isFirst) newChunk(row);
    const shown = spaced ? text.slice(1) : text;
    const cut = ++count >= BLOCK_TOKENS ? shown.lastIndexOf("\n") : -1;
    append(row ? chunk : block, newToken(cut < 0 ? shown : shown.slice(0, cut), kind, place, cut >= 0));
    if (cut < 0) return;
    newBlock();
    if (row) newChunk(row);
    if (cut + 1 < shown.length) append(row ? chunk : block, newToken(shown.slice(cut + 1), kind, place, false));
  }

  return {
    block: () => block,
    chunks: (i) => byStep[i] ?? [],
    begin(first) {
      output.replaceChildren();
      byStep = [];
      newBlock();
      if (first) writeToken({ ...first, kind: "prefill" }, 0, null);
    },
    write(row) {
      byStep[row.i] = [];
      if (row.prefill) writeToken({ ...row.prefill, kind: "prefill" }, 0, null);
      row.emitted.forEach((token, place) => writeToken(token, place, row));
    },
  };
}

// A line end is shown as a sign in front of it; the sign is no text, so that copying gives the exact output. Where
// the block ends with it, the block's own end is the line end.
function newToken(text, kind, place, endsBlock) {
  const token = make("span", `ddviz-t ddviz-t-${kind}`);
  token.dataset.place = place;
  const lines = text.split("\n");
  lines.forEach((line, k) =>
    append(token, line || null, k < lines.length - 1 ? make("span", "ddviz-newline", "\n") : null),
  );
  return append(token, endsBlock ? make("span", "ddviz-newline") : null);
}

// Returns draw(text, notes); a long prompt can be folded, and stays as the reader left it.
function newPrompt(box) {
  let drawn = null;
  return function draw(text, notes) {
    if (JSON.stringify([text, notes]) === drawn) return;
    drawn = JSON.stringify([text, notes]);
    box.hidden = !text && !notes.length;
    box.classList.remove("ddviz-folded");
    const noted = notes.map((note) => make("p", "ddviz-note-line", `Note: ${note.replace(/\.?$/, ".")}`));
    const body = make("span", "ddviz-prompt-text", text);
    box.replaceChildren(...noted, make("span", "ddviz-caption", "Prompt"), body);
    if (text.length > PROMPT_SHOWN || text.split("\n").length > 6) addFold(box, text.length);
  };
}

function addFold(box, length) {
  const fold = (folded) => {
    box.classList.toggle("ddviz-folded", folded);
    toggle.textContent = folded ? `show all ${length.toLocaleString("en")} characters` : "fold";
    toggle.setAttribute("aria-expanded", String(!folded));
  };
  const toggle = button("ddviz-link", "", "Show or fold the prompt", () =>
    fold(!box.classList.contains("ddviz-folded")),
  );
  append(box, toggle);
  fold(true);
}
