// Task `findings`: the doctor names the rule and the step, the learner finds the node. What the doctor said of it is
// shown then. The findings are examine()'s own, made when the lesson was read.

function findingsPiece({ lesson, answer, step: stepOf, go, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-findings");
  const { answer: places, findings } = lesson.wants;
  const found = new Set();
  let [step, node] = [lesson.step, lesson.node];
  const faults = places.map(([i, n]) => ({ i, n, finding: findings.find((one) => one.step === i && one.node === n) }));
  const list = make("div", "ddviz-learn-offers");
  append(box, make("h4", "ddviz-heading", "ddviz doctor"), list);

  function draw() {
    const focused = [...list.children].indexOf(list.getRootNode().activeElement);
    list.replaceChildren(...faults.map((fault, k) => lineOf(fault, k)));
    if (focused >= 0) list.children[focused].focus();
    moved(step, node);
  }

  function lineOf({ i, finding }, k) {
    const says = found.has(k) ? finding.message : "which node?";
    const one = button("ddviz-learn-offer", "", `Rule ${finding.rule}, step ${i}: ${says} Go there.`, () => goTo(i));
    if (found.has(k)) one.classList.add("ddviz-learn-kept");
    append(one, make("b", "", `${found.has(k) ? "✓ " : ""}${finding.rule}`), make("span", "ddviz-muted", `step ${i}`));
    return append(one, make("span", "", says));
  }

  function goTo(i) {
    go({ step: i, node: BONUS }); // which no finding is about
    moved(i, null);
  }

  function moved(i, n) {
    [step, node] = [i, n];
    answer.choice(placeName(i, n), check);
  }

  function check() {
    if (node === null) return answer.note(`Step ${step} is on its way.`);
    const k = faults.findIndex((fault) => fault.i === step && fault.n === node);
    if (k < 0) return whyNot(step, node);
    found.add(k);
    const { finding } = faults[k];
    if (found.size === faults.length) {
      answer.right(`${finding.rule}; likely cause: ${finding.cause}.`);
      reveal();
    } else answer.note(`✓ ${finding.rule}; likely cause: ${finding.cause}. ${faults.length - found.size} to go.`);
    return draw();
  }

  async function whyNot(i, n) {
    const about = n === BONUS ? "the bonus" : `node ${n}`;
    const differs = (await stepOf(i).catch(() => null))?.nodes[n]?.differs;
    const says = `The doctor has nothing about ${about} of step ${i}.`;
    return differs ? `${says} ${sentence(differs)} What decided over it is at its parent.` : says;
  }

  draw();
  return { element: box, moved };
}
