// Task `findings`: the doctor names the rule and the step, the learner finds the node. What the doctor said of it is
// shown then. The findings are examine()'s own, made when the lesson was read.

function findingsPiece({ lesson, answer, go, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-findings");
  const { answer: places, findings } = lesson.wants;
  const found = new Set();
  let [step, node] = [lesson.step, lesson.node ?? 0];
  const faults = places.map(([i, n]) => ({ i, n, finding: findings.find((one) => one.step === i && one.node === n) }));
  const list = make("div", "ddviz-learn-offers");
  append(box, make("h4", "ddviz-heading", "ddviz doctor"), list);

  function draw() {
    const focused = [...list.children].indexOf(list.getRootNode().activeElement);
    list.replaceChildren(...faults.map((fault, k) => lineOf(fault, k)));
    if (focused >= 0) list.children[focused].focus();
    answer.choice(`step ${step}, node ${node}`, check);
  }

  function lineOf({ i, finding }, k) {
    const says = found.has(k) ? finding.message : "which node?";
    const one = button("ddviz-learn-offer", "", `Rule ${finding.rule}, step ${i}: ${says} Go there.`, () => goTo(i));
    if (found.has(k)) one.classList.add("ddviz-learn-kept");
    append(one, make("b", "", `${found.has(k) ? "✓ " : ""}${finding.rule}`), make("span", "ddviz-muted", `step ${i}`));
    return append(one, make("span", "", says));
  }

  function goTo(i) {
    go({ step: i, node: 0 });
    moved(i, 0);
  }

  function moved(i, n) {
    [step, node] = [i, n];
    answer.choice(n === BONUS ? `step ${i}, the bonus` : `step ${i}, node ${n}`, check);
  }

  function check() {
    const k = faults.findIndex((fault) => fault.i === step && fault.n === node);
    if (k < 0) return answer.wrong(`The doctor has nothing about node ${node} of step ${step}.`);
    found.add(k);
    const { finding } = faults[k];
    if (found.size === faults.length) {
      answer.right(`${finding.rule}; likely cause: ${finding.cause}.`);
      reveal();
    } else answer.note(`✓ ${finding.rule}; likely cause: ${finding.cause}. ${faults.length - found.size} to go.`);
    return draw();
  }

  draw();
  return { element: box, moved };
}
