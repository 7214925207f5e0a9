// Jumps: the next or the last step that is worth stopping at, and words where there is none.

const JUMPS = {
  low: {
    label: "low",
    says: "low acceptance: an accept length of 1, or below half the mean",
    holds: (row, { mean }) => row.accept_len <= Math.max(1, mean / 2),
  },
  top1: {
    label: "✗ top-1",
    says: "rejected top-1: the drafter's likeliest token was examined and refused",
    holds: (row) => row.top1,
  },
  tie: {
    label: "≈ tie",
    says: "near-tie: a coin within 0.01 of its bound, or an argmax within 0.1 of the second logit",
    holds: (row) => row.tie,
  },
};

// Place of the next step of that kind after `from` (way 1) or before it (way -1); null where there is none.
function findJump(rows, kind, from, way) {
  const mean = rows.reduce((sum, row) => sum + row.accept_len, 0) / (rows.length || 1);
  for (let i = from + way; i >= 0 && i < rows.length; i += way) {
    if (JUMPS[kind].holds(rows[i], { mean })) return i;
  }
  return null;
}

function jumpCommand({ state, panels, commands }) {
  return function jump(kind, way = 1) {
    if (state.step === null) return;
    const found = findJump(state.rows, kind, state.step, way);
    if (found !== null) commands.goTo(found);
    else panels.scrubber.announce(`no ${way > 0 ? "later" : "earlier"} step: ${JUMPS[kind].says.split(":")[0]}`);
  };
}
