// Tasks `step` and `click`: what is chosen in the viewer is the answer.
//
// Every piece: (desk) => { element, moved(step, node) }, both optional; node is the one that the viewer marks, null
// while that step is on its way. desk { lesson, answer, scope, step(i), go(change) of the viewer, reveal() }.

function stepPiece({ lesson, answer }) {
  const { wants } = lesson;

  function offer(step) {
    answer.choice(`step ${step}`, () => {
      if (step === wants.answer) answer.right(`Step ${step}.`);
      else answer.wrong(`Step ${step} is too ${step < wants.answer ? "early" : "late"}.`);
    });
  }

  offer(lesson.step);
  return { moved: offer };
}

function clickPiece({ lesson, answer, step: stepOf, reveal }) {
  const { wants, step: asked, blind } = lesson;

  function offer(step, node) {
    const name = placeName(step === asked ? null : step, node);
    answer.choice(name, async () => {
      if (step !== asked) return answer.wrong(`The question is about step ${asked}; this is step ${step}.`);
      if (node === null) return answer.note("The step is on its way.");
      if (wants.answer.includes(node)) {
        answer.right(sentence(name));
        return reveal();
      }
      return `Not ${name}. ${await whyOf(node)}`.trim();
    });
  }

  async function whyOf(node) {
    const view = await stepOf(asked).catch(() => null);
    if (!view) return ""; // it can't be read just now
    const { why, status } = (node === BONUS ? view.bonus : view.nodes[node]) ?? {};
    if (blind && status === "unreached") return "It is never examined."; // why would name the answer
    return why ? sentence(why) : "";
  }

  offer(asked, lesson.node);
  return { moved: offer };
}

// "step 9, node 4", "the bonus", "step 9"; either may be null.
function placeName(step, node) {
  const names = { step: step === null ? "" : `step ${step}`, node: node === BONUS ? "the bonus" : `node ${node}` };
  if (node === null) return names.step || "the node";
  return [names.step, names.node].filter(Boolean).join(", ");
}
