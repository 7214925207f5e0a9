// Shows step after step, from the first again where the last was reached; any choice of the reader ends it.

const PLAY_EVERY = 900; // ms a step is shown

function newPlayer(viewer) {
  const { scope, state, address } = viewer;

  function start() {
    if (state.rows.length < 2) return;
    if (state.follow) address.follow(false); // a live run that has ended
    set(true);
    if (state.step === newestStep(state)) address.goTo(0);
    scope.later("play", PLAY_EVERY, goOn);
  }

  function goOn() {
    address.goTo(state.step + 1);
    if (state.step >= newestStep(state)) stop();
    else scope.later("play", PLAY_EVERY, goOn);
  }

  function stop() {
    scope.cancel("play");
    if (state.playing) set(false);
  }

  function set(on) {
    state.playing = on;
    viewer.feed.showStatus();
  }

  return { start, stop, toggle: () => (state.playing ? stop() : start()) };
}
