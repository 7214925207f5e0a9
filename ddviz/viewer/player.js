// Shows step after step, from the first again where the last was reached; any choice of the reader ends it. No step is
// passed over: the next one comes when this one has been drawn, however fast it is played.

const SPEEDS = [
  // steps per second; null: each as long as it took when it was recorded
  [1, "1 step/s"],
  [2, "2 steps/s"],
  [5, "5 steps/s"],
  [10, "10 steps/s"],
  [30, "30 steps/s"],
  [null, "as recorded"],
];
const [DRAWN_EVERY, DRAWN_WITHIN] = [16, 2000]; // ms to look again, and to give up a step that can't be read
const RECORDED_MOST = 5000; // ms, for a step that took a minute

function newPlayer(viewer) {
  const { scope, state, address } = viewer;
  let [speed, waited] = [SPEEDS[0][0], 0];

  function start() {
    if (state.rows.length < 2) return;
    if (state.follow) address.follow(false); // a live run that has ended
    set(true);
    if (state.step === newestStep(state)) address.goTo(0);
    wait();
  }

  function wait() {
    waited = 0;
    const recorded = clamp(state.rows[state.step].ms ?? 1000, DRAWN_EVERY, RECORDED_MOST);
    scope.later("play", speed === null ? recorded : 1000 / speed, goOn);
  }

  function goOn() {
    if (state.drawn !== state.step && waited < DRAWN_WITHIN) {
      waited += DRAWN_EVERY;
      return scope.later("play", DRAWN_EVERY, goOn);
    }
    address.goTo(state.step + 1);
    viewer.onGo?.(state.step);
    return state.step >= newestStep(state) ? stop() : wait();
  }

  function stop() {
    scope.cancel("play");
    if (state.playing) set(false);
  }

  function set(on) {
    state.playing = on;
    viewer.feed.showStatus();
  }

  function setSpeed(stepsPerSecond) {
    speed = stepsPerSecond;
    if (state.playing) wait();
  }

  return { start, stop, setSpeed, toggle: () => (state.playing ? stop() : start()) };
}
