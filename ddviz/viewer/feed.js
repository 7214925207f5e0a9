// Takes the source's answers in, and says what surrounds the data: live or not, what went wrong, why nothing is there.

const END_SAYS = {
  stop: "end: a stop token",
  length: "end: max tokens reached",
  context: "end: the context is full",
  stopped: "end: stopped by hand",
  error: "end: an error",
};

function newFeed(viewer) {
  const { state, panels, address } = viewer;

  // Takes an answer in; true if it brought steps, or another request.
  function take(view) {
    const isOther = view.key !== state.key;
    if (isOther) beginAnew(view);
    const fresh = view.since === state.rows.length ? view.steps : []; // a repeated or late answer is dropped
    if (view.since === 0 && !state.rows.length) panels.begin(view);
    Object.assign(state, { total: view.total, more: Boolean(view.more), status: view.status ?? null });
    Object.assign(state, { damage: view.damage ?? null, dropped: view.dropped ?? [] });
    state.rows.push(...fresh);
    if (fresh.length) panels.rows(fresh, state.rows);
    if (view.stats && state.rows.length === view.since + view.steps.length) panels.stats(view.stats);
    if (view.end && !state.end && state.rows.length >= view.total) finish(view);
    showStatus();
    if (fresh.length) address.grew();
    address.giveUp();
    return fresh.length > 0 || isOther;
  }

  function beginAnew({ key }) {
    viewer.player.stop();
    viewer.loader.forget();
    Object.assign(state, nothingRead(), { key, follow: state.live && !state.wanted });
    panels.clear();
  }

  function finish({ end, end_message: message, tail }) {
    state.end = end;
    state.problems.end = message ?? null;
    panels.end(END_SAYS[end] ?? end, tail);
    if (state.follow) address.draw(); // the end is in view
  }

  function showStatus() {
    panels.status(situationOf(state));
  }

  function setProblem(sentence) {
    state.problems.source = sentence;
    showStatus();
  }

  // Says what was asked for in vain, until the reader goes on.
  function mislead(...sentences) {
    state.misled.push(...sentences.filter((sentence) => !state.misled.includes(sentence)));
    showStatus();
  }

  function forgetMisled() {
    if (!state.misled.length) return;
    state.misled = [];
    showStatus();
  }

  return { take, showStatus, setProblem, mislead, forgetMisled };
}

// What the panels are told of it.
function situationOf(state) {
  const { problems, misled, damage, dropped, status, follow, playing, rows } = state;
  const grows = isLive(state) && !(damage && rows.length);
  const said = [...misled, problems.source, problems.step, problems.end, damage, ...dropped, status?.error];
  return {
    reading: shareRead(state),
    badge: !grows ? "recorded" : status?.state === "paused" ? "paused" : "live",
    isLive: isLive(state),
    follow,
    playing,
    sentence: said.filter(Boolean).join(" · "),
    waiting: waitingFor(state),
  };
}

// Why no step is to be seen yet; null where one is.
function waitingFor({ rows, view, problems, status, total, end }) {
  if (rows.length) return view || problems.step ? null : { says: "Reading …", progress: null };
  const says = status?.message || (end ? "The trace holds no steps." : total ? "Reading …" : "No steps yet.");
  return { says, progress: typeof status?.progress === "number" ? clamp(status.progress, 0, 1) : null };
}
