// When to ask the source: at once while it has more, 8 times a second while a live trace grows, ever more slowly while
// it does not, and not at all once it ended or while nobody looks. A failure is said and tried again.
//
// In:  ask() -> Promise of a poll view, source() (answers of another than the present one are dropped), take(view) ->
//      whether it brought anything, isBehind(), isLive(), onProblem(sentence or null).

const [POLL_FAST, POLL_SLOWEST, POLL_STATUS] = [125, 1000, 400]; // ms
const [RETRY_FIRST, RETRY_LAST] = [1000, 8000];

function newPoller(scope, { ask, source, take, isBehind, isLive, onProblem }) {
  let [asking, failures, idle] = [false, 0, POLL_FAST];

  async function poll() {
    scope.cancel("poll");
    if (asking || scope.closed || (document.hidden && isLive())) return; // goes on when the page is seen again
    asking = true;
    const asked = source();
    const isStale = () => scope.closed || asked !== source();
    try {
      const view = await ask();
      if (!isStale()) arrived(view);
    } catch (error) {
      if (!isStale()) retryLater(error);
    }
    asking = false;
    if (!scope.closed && asked !== source()) poll();
  }

  function arrived(view) {
    failures = 0;
    onProblem(null);
    const grew = take(view);
    if (isBehind() && grew) return scope.later("poll", 0, poll);
    if (!isLive() || view.end || view.damage) return undefined;
    idle = grew ? POLL_FAST : Math.min(idle * 1.5, view.total ? POLL_SLOWEST : POLL_STATUS);
    return scope.later("poll", idle, poll);
  }

  function retryLater(error) {
    const wait = Math.min(RETRY_FIRST * 2 ** failures++, RETRY_LAST);
    const when = `trying again in ${Math.round(wait / 1000)} s`;
    onProblem(`The trace can't be read just now (${messageOf(error)}). What was read stays; ${when}.`);
    scope.later("poll", wait, poll);
  }

  return { poll };
}

function messageOf(error) {
  return shorten(String(error?.message ?? error ?? "no answer"), 200);
}
