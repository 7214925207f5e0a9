// The text pane: the prompt, then the output, one span per token. Append only: what stands is never drawn again.
// Steps alternate between two tints; accepted tokens stand plain, the bonus has a dotted underline.

const PROMPT_SHOWN = 280; // characters before a long prompt is folded

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
  let chunks = []; // by step
  let tail = null;
  let current = null;
  let tokens = 0;

  scope.listen(output, "click", (event) => {
    const token = event.target.closest(".ddviz-t");
    const chunk = token?.closest(".ddviz-chunk");
    if (!chunk || String(getSelection())) return; // a selection is for copying
    onPick(Number(chunk.dataset.step), Number(token.dataset.place));
  });

  function appendRow(row) {
    const chunk = make("span", `ddviz-chunk ddviz-tint-${row.i % 2}`);
    chunk.dataset.step = row.i;
    if (row.prefill) appendToken(output, output, { ...row.prefill, kind: "prefill" }, 0);
    row.emitted.forEach((token, place) => appendToken(place ? chunk : output, chunk, token, place));
    chunks.push(output.appendChild(chunk));
    tokens += row.emitted.length;
  }

  return {
    begin(view) {
      chunks = [];
      current = tail = null;
      tokens = view.first ? 1 : 0;
      drawPrompt(prompt, (view.prompt ?? []).join(""));
      output.replaceChildren();
      if (view.first) appendToken(output, output, { ...view.first, kind: "prefill" }, 0);
      count.textContent = "";
    },
    rows(rows) {
      rows.forEach(appendRow);
      count.textContent = tokens ? `${tokens.toLocaleString("en")} tokens` : "";
    },
    end(reason, rest) {
      tail?.remove();
      if (rest) append(output, make("span", "ddviz-muted", rest));
      tail = append(output, make("span", "ddviz-end", reason)).lastChild;
    },
    step(i, { follow }) {
      current?.classList.remove("ddviz-current");
      current = chunks[i] ?? null;
      current?.classList.add("ddviz-current");
      if (follow) scroller.scrollTop = scroller.scrollHeight;
      else if (current) keepInView(scroller, current);
    },
    token(place) {
      output.querySelector(".ddviz-picked")?.classList.remove("ddviz-picked");
      if (place !== null) current?.querySelectorAll(".ddviz-t")[place]?.classList.add("ddviz-picked");
    },
  };
}

// A token's leading space stands before its span (and before its step's), so that tints and underlines hug words.
function appendToken(before, inside, { text, kind }, place) {
  const spaced = text.startsWith(" ") && text.length > 1;
  if (spaced) append(before, " ");
  append(inside, newToken(spaced ? text.slice(1) : text, kind, place));
}

// A line end is shown as a sign in front of it; the sign is no text, so that copying gives the exact output.
function newToken(text, kind, place) {
  const token = make("span", `ddviz-t ddviz-t-${kind}`);
  token.dataset.place = place;
  if (!text.includes("\n")) token.textContent = text;
  else {
    const parts = text.split("\n");
    parts.forEach((part, k) => append(token, part || null, k < parts.length - 1 ? make("span", "ddviz-newline", "\n") : null));
  }
  return token;
}

function drawPrompt(prompt, text) {
  prompt.hidden = !text;
  const body = make("span", "ddviz-prompt-text", text);
  prompt.replaceChildren(make("span", "ddviz-caption", "Prompt"), body);
  if (text.length <= PROMPT_SHOWN && text.split("\n").length <= 6) return;
  const fold = (folded) => {
    prompt.classList.toggle("ddviz-folded", folded);
    toggle.textContent = folded ? `show all ${text.length.toLocaleString("en")} characters` : "fold";
    toggle.setAttribute("aria-expanded", String(!folded));
  };
  const toggle = button("ddviz-link", "", "Show or fold the prompt", () => fold(!prompt.classList.contains("ddviz-folded")));
  append(prompt, toggle);
  fold(true);
}

// Scrolls the pane alone, never the page around it.
function keepInView(scroller, element) {
  const [box, own] = [scroller.getBoundingClientRect(), element.getBoundingClientRect()];
  if (own.top < box.top + 8) scroller.scrollTop -= box.top - own.top + box.height / 3;
  else if (own.bottom > box.bottom - 8) scroller.scrollTop += own.bottom - box.bottom + box.height / 3;
}
