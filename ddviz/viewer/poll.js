// When to ask the source: at once while it has more, 8 times a second while a live trace grows, ever more slowly while
// it does not, and not at all once it ended or while nobody looks. A failure is said and tried again.
// Answers of another source than the present one are dropped.

const [POLL_FAST, POLL_SLOWEST, POLL_STATUS] = [125, 1000, 400]; // ms
const [RETRY_FIRST, RETRY_LAST] = [1000, 8000];

function newPoller({ scope, state, feed }) {
  let [asking, failures, idle] = [false, 0, POLL_FAST];

  async function poll() {
    scope.cancel("poll");
    if (asking || scope.closed || (document.hidden && state.live)) return; // goes on when the page is seen again
    asking = true;
    const asked = state.source;
    const isStale = () => scope.closed || asked !== state.source;
    try {
      const view = await asked.poll(state.rows.length);
      if (!isStale()) arrived(view);
    } catch (error) {
      if (!isStale()) retryLater(error);
    }
    asking = false;
    if (!scope.closed && asked !== state.source) poll();
  }

  function arrived(view) {
    failures = 0;
    feed.setProblem(null);
    const grew = feed.take(view);
    if (view.more || (state.rows.length < state.total && grew)) return scope.later("poll", 0, poll);
    if (!state.live || view.end || view.damage) return undefined;
    idle = grew ? POLL_FAST : Math.min(idle * 1.5, view.total ? POLL_SLOWEST : POLL_STATUS);
    return scope.later("poll", idle, poll);
  }

  function retryLater(error) {
    const wait = Math.min(RETRY_FIRST * 2 ** failures++, RETRY_LAST);
    const when = `trying again in ${Math.round(wait / 1000)} s`;
    feed.setProblem(`The trace can't be read just now (${messageOf(error)}). What was read stays; ${when}.`);
    scope.later("poll", wait, poll);
  }

  scope.listen(document, "visibilitychange", () => !document.hidden && isLive(state) && poll());
  return { poll };
}

function messageOf(error) {
  return shorten(String(error?.message ?? error ?? "no answer"), 200);
}
