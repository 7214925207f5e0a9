// A lesson's text: blocks and inlines of markdown.py as elements. Text goes through textContent alone.

const BLOCKS = {
  p: ([inlines], onTerm) => inlinesIn(make("p"), inlines, onTerm),
  h: ([inlines], onTerm) => inlinesIn(make("h3"), inlines, onTerm),
  code: ([text]) => append(make("pre"), make("code", "", text)),
  quote: ([blocks], onTerm) => append(make("blockquote"), ...textBlocks(blocks, onTerm)),
  ul: ([items], onTerm) => listOf("ul", items, onTerm),
  ol: ([items], onTerm) => listOf("ol", items, onTerm),
  table: ([head, rows], onTerm) => {
    const line = (tag, cells) => append(make("tr"), ...cells.map((cell) => inlinesIn(make(tag), cell, onTerm)));
    const body = append(make("tbody"), ...rows.map((row) => line("td", row)));
    return append(make("table", "ddviz-learn-table"), append(make("thead"), line("th", head)), body);
  },
};

// onTerm(term): a link to the glossary was followed.
function textBlocks(blocks, onTerm) {
  return blocks.map(([kind, ...content]) => BLOCKS[kind](content, onTerm));
}

function listOf(tag, items, onTerm) {
  return append(make(tag), ...items.map((blocks) => append(make("li"), ...textBlocks(blocks, onTerm))));
}

function inlinesIn(element, inlines, onTerm) {
  return append(element, ...inlines.map((inline) => inlineOf(inline, onTerm)));
}

function inlineOf(inline, onTerm) {
  if (typeof inline === "string") return inline;
  const [kind, ...content] = inline;
  if (kind === "br") return make("br");
  if (kind === "code") return make("code", "", content[0]);
  if (kind !== "a") return inlinesIn(make(kind === "b" ? "strong" : "em"), content[0], onTerm);
  const [address, inner] = content;
  const link = inlinesIn(make("a"), inner, onTerm);
  link.href = address;
  if (address.startsWith("#")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      onTerm(address.slice(1));
    });
  } else Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  return link;
}
