// The question of a lesson: its words, the buttons, and what is said to an answer, at once.

function newAnswer({ lesson, onTerm, isDone, onRight, onNext }) {
  const card = make("section", "ddviz-learn-question");
  card.setAttribute("aria-label", "Question");
  const check = button("ddviz-learn-check", "", "Check the answer (Enter in the tree)", () => press());
  const hint = make("div", "ddviz-learn-hint");
  const hintButton = toggleButton("", "Hint", "A hint", (on) => (hint.hidden = !on));
  const next = button("ddviz-learn-next", "Next lesson", "The next lesson", onNext);
  const says = make("div", "ddviz-learn-says");
  const word = make("p", "ddviz-learn-verdict");
  word.setAttribute("role", "status");
  const more = make("div");
  let [onCheck, judged] = [null, null]; // judged: the label of the answer that was wrong
  append(hint, ...textBlocks(lesson.hint, onTerm));
  append(says, word, more);
  append(
    card,
    make("h3", "", "Your turn"),
    ...textBlocks(lesson.question, onTerm),
    append(make("div", "ddviz-learn-buttons"), check, hintButton, next),
    hint,
    says,
  );
  [hint.hidden, check.hidden, next.hidden, says.hidden] = [true, true, true, true];
  if (isDone) {
    say("done", "✓ You have answered this one. Do it again, if you like.");
    next.hidden = !onNext;
  }

  // What is wrong may take a moment to find: then it is said of the same answer, or not at all.
  async function press() {
    const asked = check.textContent;
    const wrong = await onCheck();
    if (wrong && asked === check.textContent) say("wrong", `✗ ${wrong}`);
  }

  function say(kind, text) {
    says.hidden = false;
    judged = kind === "wrong" ? check.textContent : null;
    says.className = `ddviz-learn-says ddviz-learn-${kind}`;
    word.textContent = "";
    word.textContent = text; // said again where it is the same
    if (kind !== "right") more.replaceChildren();
    reveal();
  }

  function reveal() {
    if (card.isConnected) keepInView(card.closest(".ddviz-scroller"), says);
  }

  return {
    element: card,
    wrong: (text) => say("wrong", `✗ ${text}`),
    note: (text) => say("note", text), // on the way
    right(text) {
      say("right", `✓ ${text}`);
      more.replaceChildren(...textBlocks(lesson.right, onTerm));
      next.hidden = !onNext;
      reveal();
      onRight();
    },
    // A button that checks: its label names the answer as it stands. What was wrong of another is said no more.
    // whenChecked says what it has to say, or returns what is wrong, or a promise of that.
    choice(label, whenChecked) {
      check.hidden = false;
      check.textContent = `Answer: ${label}`;
      if (judged !== null && judged !== check.textContent) says.hidden = true;
      onCheck = whenChecked;
    },
    // As its button; false where nothing is to be checked.
    check() {
      if (onCheck === null) return false;
      press();
      return true;
    },
  };
}
