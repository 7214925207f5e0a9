// The text pane: the prompt, then the output, one span per token. Append only: what stands is never drawn again.
// Steps alternate between two tints; accepted tokens stand plain, the bonus has a dotted underline.

const PROMPT_SHOWN = 280; // characters before a long prompt is folded
const BLOCK_TOKENS = 250; // a new block begins at the next line end, so that a browser lays out little at a time

function createText(parent, { scope, onPick }) {
  const pane = append(parent, make("section", "ddviz-pane ddviz-text-pane")).lastChild;
  const head = append(make("header", "ddviz-pane-head"), make("h3", "ddviz-title", "Text"));
  const count = append(head, make("span", "ddviz-muted")).lastChild;
  const scroller = make("div", "ddviz-scroller");
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", "Prompt and output");
  const prompt = make("div", "ddviz-prompt");
  const output = make("div", "ddviz-output");
  append(pane, head, append(scroller, prompt, output));
  const writer = newWriter(output);
  let [tail, current, picked, tokens] = [null, [], [], 0];

  scope.listen(output, "click", (event) => {
    const token = event.target.closest(".ddviz-t");
    const chunk = token?.closest(".ddviz-chunk");
    const selection = output.getRootNode().getSelection?.() ?? getSelection();
    if (!chunk || String(selection)) return; // a selection is for copying
    onPick(Number(chunk.dataset.step), Number(token.dataset.place));
  });

  return {
    begin(view) {
      [tail, current, picked, tokens] = [null, [], [], view.first ? 1 : 0];
      drawPrompt(prompt, (view.prompt ?? []).join(""), view.header?.notes ?? []);
      writer.begin(view.first);
      count.textContent = "";
    },
    rows(rows) {
      for (const row of rows) {
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
    step(i, { follow }) {
      for (const chunk of current) chunk.classList.remove("ddviz-current");
      current = writer.chunks(i);
      for (const chunk of current) chunk.classList.add("ddviz-current");
      if (follow) scroller.scrollTop = scroller.scrollHeight;
      else if (current.length) keepInView(scroller, current[0]);
    },
    token(place) {
      for (const token of picked) token.classList.remove("ddviz-picked");
      picked = current.flatMap((chunk) => Array.from(chunk.querySelectorAll(`[data-place="${place}"]`)));
      for (const token of picked) token.classList.add("ddviz-picked");
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

function drawPrompt(prompt, text, notes) {
  prompt.hidden = !text && !notes.length;
  const body = make("span", "ddviz-prompt-text", text);
  const noted = notes.map((note) => make("p", "ddviz-note-line", `Note: ${note.replace(/\.?$/, ".")}`));
  prompt.replaceChildren(...noted, make("span", "ddviz-caption", "Prompt"), body);
  if (text.length <= PROMPT_SHOWN && text.split("\n").length <= 6) return;
  const fold = (folded) => {
    prompt.classList.toggle("ddviz-folded", folded);
    toggle.textContent = folded ? `show all ${text.length.toLocaleString("en")} characters` : "fold";
    toggle.setAttribute("aria-expanded", String(!folded));
  };
  const toggle = button("ddviz-link", "", "Show or fold the prompt", () =>
    fold(!prompt.classList.contains("ddviz-folded")),
  );
  append(prompt, toggle);
  fold(true);
}

// Scrolls the pane alone, never the page around it.
function keepInView(scroller, element) {
  const [box, own] = [scroller.getBoundingClientRect(), element.getBoundingClientRect()];
  if (own.top < box.top + 8) scroller.scrollTop -= box.top - own.top + box.height / 3;
  else if (own.bottom > box.bottom - 8) scroller.scrollTop += own.bottom - box.bottom + box.height / 3;
}
