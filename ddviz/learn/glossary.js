// The glossary: a sheet over the lesson, open at a term.

function newGlossary(root, scope, terms) {
  const sheet = newSheet(root, scope, "Glossary");
  sheet.element.classList.add("ddviz-learn-glossary");
  const list = make("dl");
  const places = new Map();
  for (const [term, blocks] of terms) {
    const name = make("dt", "", term.replaceAll("-", " "));
    name.tabIndex = -1;
    places.set(term, name);
    append(list, name, append(make("dd"), ...textBlocks(blocks, goTo)));
  }
  sheet.body.tabIndex = 0;
  append(sheet.body, list);

  function goTo(term) {
    sheet.open();
    const place = places.get(term) ?? sheet.body;
    for (const name of places.values()) name.classList.toggle("ddviz-learn-found", name === place);
    place.focus({ preventScroll: true });
    place.scrollIntoView({ block: "center" });
  }

  return { goTo, open: () => goTo(terms[0]?.[0]) };
}
