// One lesson on screen: the text and its question beside the bench, which holds the piece and the viewer.

const PIECES = {
  step: stepPiece,
  click: clickPiece,
  pop: popPiece,
  links: linksPiece,
  walk: walkPiece,
  coin: coinPiece,
  pack: packPiece,
  whatif: whatifPiece,
  findings: findingsPiece,
};

// page { root, scope of this lesson, source(key), onTerm, onRight, onNext, isDone } -> the two columns
function showLesson(body, lesson, page) {
  const { scope, onTerm } = page;
  const article = newScroller("ddviz-learn-text", lesson.title);
  const bench = make("section", "ddviz-learn-bench");
  bench.setAttribute("aria-label", "The step");
  body.replaceChildren(article, bench);

  const heading = append(article, make("h2", "", lesson.title)).lastChild;
  heading.tabIndex = -1;
  const answer = newAnswer({ lesson, ...page });
  append(article, ...textBlocks(lesson.text, onTerm), newCue(answer.element, scope), answer.element);
  if (lesson.sources.length) {
    const sources = append(make("footer", "ddviz-learn-sources"), make("h3", "", "Sources"));
    append(article, append(sources, ...textBlocks(lesson.sources, onTerm)));
  }

  const source = page.source(lesson.trace);
  const views = {}; // step views that a piece asked for
  const viewBox = make("div", "ddviz-learn-viewer");
  let view = null;
  const desk = {
    lesson,
    answer,
    scope,
    step: (i) => (views[i] ??= source.step(i).catch((error) => forget(i, error))),
    go: (change) => view?.update(change),
    reveal,
  };
  if (lesson.beside) bench.append(besideOf(lesson, page));
  const piece = PIECES[lesson.task](desk);
  if (piece.element) bench.append(piece.element);
  if (!lesson.hide.includes("viewer")) {
    viewBox.classList.toggle("ddviz-learn-whole", !lesson.hide.length);
    bench.append(viewBox);
    openViewer({ blind: lesson.blind, stage: lesson.stage, step: lesson.step, node: lesson.node });
  }
  scope.onClose(() => view?.destroy());
  scope.listen(article, "keydown", stepFromText);
  scope.listen(viewBox, "keydown", answerByEnter, true); // before the viewer, which would choose the node again

  // A step that could not be read is asked for again.
  function forget(i, error) {
    delete views[i];
    throw error;
  }

  function openViewer(at) {
    view?.destroy();
    let last = null;
    const moved = (step, node) => {
      last = step;
      piece.moved?.(step, node);
    };
    // the node of another step is known when it is there
    const onGo = (step) => step !== last && moved(step, null);
    view = mountBench(viewBox, lesson, source, { onSelect: moved, onDrawn: moved, onGo }, at);
  }

  // Left and right go through the steps from the text and its buttons too: nothing there uses them.
  function stepFromText(event) {
    const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
    if (!/^Arrow(Left|Right)$/.test(key) || ctrlKey || metaKey || altKey || shiftKey) return;
    const root = viewBox.querySelector(".ddviz-host")?.shadowRoot.querySelector(".ddviz");
    const again = new KeyboardEvent("keydown", { key, repeat: event.repeat, bubbles: true, cancelable: true });
    if (root && !root.dispatchEvent(again)) event.preventDefault();
  }

  function answerByEnter(event) {
    if (event.key !== "Enter" || event.composedPath()[0].role !== "tree" || !answer.check()) return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The answer was right: nothing is hidden any more.
  function reveal() {
    if (!view || scope.closed) return;
    const { step, node } = view.state();
    if (lesson.blind) openViewer({ blind: false, stage: lesson.then ?? lesson.stage, step, node: node || null });
    else if (lesson.then) view.update({ stage: lesson.then });
  }

  return { heading, answer };
}

// Under a long text: where the question is, while its buttons are out of sight.
function newCue(card, scope) {
  const buttons = card.querySelector(".ddviz-learn-buttons");
  const cue = button("ddviz-learn-cue", "Your turn ↓", "Go to the question", () => {
    card.scrollIntoView({ block: "nearest" });
    [...buttons.children].find((one) => !one.hidden)?.focus({ preventScroll: true });
  });
  cue.hidden = true;
  const look = (entries) => {
    const { isIntersecting, boundingClientRect: box } = entries.at(-1);
    cue.hidden = isIntersecting || box.top < card.parentNode.getBoundingClientRect().top;
  };
  scope.observe(new IntersectionObserver(look, { threshold: 0.99 }), [buttons]); // of 1 a zoomed page falls short
  return append(make("div", "ddviz-learn-cue-line"), cue);
}

const BESIDE_SCALE = 1.2; // at which labels are read from the back of a room

// A step of another trace, above the lesson's own, or beside it where there is room for two.
function besideOf({ beside }, { source, scope }) {
  const title = `${beside.name}, step ${beside.step}`;
  const [box, says] = [make("section", "ddviz-learn-beside"), make("span", "ddviz-muted")];
  append(box, append(make("header", "ddviz-pane-head"), make("h4", "ddviz-heading", title), says));
  const picture = newPicture(box, scope, title, BESIDE_SCALE);
  picture.element.tabIndex = 0; // a long chain is scrolled
  source(beside.trace)
    .step(beside.step)
    .then((view) => {
      says.textContent = `${view.algorithm} · accept length ${view.accept_len} · ${view.nodes.length} nodes`;
      picture.draw(view, { says: `${title}: ${says.textContent}` });
    });
  return box;
}
