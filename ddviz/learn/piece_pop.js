// Task `pop`: the learner pops the heap, the search of ddviz/tree/build.py (its twin in viewer/build_search.js) checks.

function popPiece({ lesson, answer, scope, step: stepOf, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-pop");
  const picture = newPicture(box, scope, "The tree so far");
  const side = append(box, make("div", "ddviz-learn-heap")).lastChild;
  const title = append(side, make("h4", "ddviz-heading", "The heap")).lastChild;
  const list = append(side, make("div", "ddviz-learn-offers")).lastChild;
  const { pops: wanted } = lesson.wants;
  let [view, search, pops] = [null, null, 0];

  stepOf(lesson.step).then((found) => {
    view = found;
    search = searchOf(view);
    draw();
  });

  function draw() {
    const isOver = pops >= wanted;
    const heap = frontierAt(search, pops);
    const shown = [...heap].sort((a, b) => a.parent - b.parent || a.rank - b.rank); // not the answer
    title.textContent = `The heap: ${heap.length} offer${heap.length === 1 ? "" : "s"} · pop ${pops} of ${wanted}`;
    const isFocused = list.contains(list.getRootNode().activeElement);
    list.replaceChildren(...shown.map((offer) => offerButton(offer, heap[0], isOver)));
    if (isFocused) list.querySelector("button:not(:disabled)")?.focus();
    const nodes = search.nodes.slice(0, isOver ? search.nodes.length : pops + 1);
    const says = `The tree after ${pops} pops: ${nodes.map(({ token }) => labelOf(view, token)).join(" ")}`;
    picture.draw(pictureStep(nodes, (token) => labelOf(view, token)), { mark: pops, says });
  }

  function offerButton(offer, best, isOver) {
    const { rank, parent } = offer;
    const kind = rank === 0 ? `first child of node ${parent}` : `rank ${rank} below node ${parent}`;
    const label = labelOf(view, offer.token);
    const says = `Pop ${label}, ${kind}, score ${precise(offer.score)}`;
    const one = button("ddviz-learn-offer", "", says, () => pop(offer, best));
    append(one, tokenText(label, 12), make("span", "ddviz-muted", kind), make("b", "", precise(offer.score)));
    one.disabled = isOver;
    return one;
  }

  function pop(offer, best) {
    const label = labelOf(view, offer.token);
    if (offer !== best) {
      return answer.wrong(`${label} has score ${precise(offer.score)}; there is an offer with a higher one.`);
    }
    pops += 1;
    const made = search.offers.filter(({ born }) => born === pops).map((one) => labelOf(view, one.token));
    if (pops >= wanted) {
      answer.right(`${wanted} pops, as the engine made them.`);
      reveal();
    } else answer.note(`Node ${pops} is ${label}. It offers ${made.join(" and ") || "nothing"}.`);
    return draw();
  }

  return { element: box };
}
