// Marks the token at which this trace's text parts from another's.
//
// In:  viewer.parting = { step, place }, step null for the token of the prefill; or nothing.

function createParting(parent, { root, parting }) {
  if (!parting) return {};
  const { step, place } = parting;

  function mark(element) {
    element?.classList.add("ddviz-parting");
    if (element) element.title = "Here the two texts part";
  }

  return {
    begin: () => step === null && mark(root.querySelector(".ddviz-t-prefill")),
    rows(fresh) {
      if (!fresh.some((row) => row.i === step)) return;
      mark(root.querySelector(`.ddviz-chunk[data-step="${step}"] [data-place="${place}"]`));
    },
  };
}
