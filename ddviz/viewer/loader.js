// Step views: one request at a time, those that nobody wants any more skipped, the last ones remembered.

const STEPS_KEPT = 64; // step views remembered

function newLoader(viewer) {
  const { scope, state } = viewer;
  const kept = new Map(); // place in rows -> step view, the latest used last
  let isLoading = false;

  // Brings the chosen step to the address, now or later.
  async function load() {
    const i = state.step;
    const view = kept.get(i);
    if (view) return arrived(i, view);
    if (isLoading || i === null) return undefined;
    isLoading = true;
    const [source, key] = [state.source, state.key];
    const answer = await read(source, i);
    isLoading = false;
    if (scope.closed) return undefined;
    if (source !== state.source || key !== state.key) return load(); // of another request
    setProblem(i, answer.error);
    if (answer.view) arrived(i, answer.view);
    return i === state.step ? undefined : load();
  }

  async function read(source, i) {
    try {
      return { view: await source.step(i), error: null };
    } catch (error) {
      return { view: null, error };
    }
  }

  function setProblem(i, error) {
    const before = state.problems.step;
    state.problems.step = error && `Step ${state.rows[i]?.index ?? i} can't be read (${messageOf(error)}).`;
    if (state.problems.step !== before) viewer.feed.showStatus();
  }

  function arrived(i, view) {
    remember(i, view);
    const isNewer = i > (state.view?.i ?? -1); // while following, steps pass by in their order
    if (i === state.step || (state.follow && isNewer)) viewer.address.show(view);
  }

  function remember(i, view) {
    kept.delete(i);
    kept.set(i, view);
    if (kept.size > STEPS_KEPT) kept.delete(kept.keys().next().value);
  }

  return { load, forget: () => kept.clear() };
}
