// The whole viewer: ddviz.mount(element, source, options) -> { update, destroy, state, focus }.
//
//   source   poll(since) -> Promise of poll_view, plus optionally status: { state, message, progress, error }
//            step(i)     -> Promise of step_view
//   options  live        keep polling, follow the newest step (false: read what is there, once)
//            step, node  where to begin instead (default: the newest step live, else step 0)
//            onSelect    (step, node) after the reader chose one; node is an index or "bonus"
//   update   { step, node, follow, live, source }: anything of it. A new `source`, or `live`, polls afresh.
//
// assets() in html.py wraps these files into one function, so that nothing but window.ddviz is global.

const STEPS_KEPT = 64; // step views remembered
const PLAY_EVERY = 900; // ms a step is shown while playing

function mount(element, source, options = {}) {
  const scope = newScope();
  const host = append(element, make("div", "ddviz-host")).lastChild;
  const shadow = host.attachShadow({ mode: "open" }); // the page's styles stay outside, the viewer's inside
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLESHEET);
  shadow.adoptedStyleSheets = [sheet];
  const root = append(shadow, make("div", "ddviz")).lastChild;
  root.tabIndex = -1;
  scope.onClose(() => host.remove());

  const state = newState(source, options);
  const parts = buildParts(root, scope, {
    onStep: (i) => choose(i, { byReader: true }),
    onFollow: () => toggleFollow(!state.follow),
    onPlay: () => setPlaying(!state.playing),
    onNode: (index) => chooseNode(index, true),
    onText: (i, place) => choose(i, { byReader: true, place }),
  });
  const drawStep = newFrame(scope, () => showStep(parts, state));

  const poller = newPoller(scope, {
    ask: () => state.source.poll(state.rows.length),
    source: () => state.source,
    take,
    isBehind: () => state.rows.length < state.total,
    isLive: () => Boolean(options.live),
    onProblem: setProblem,
  });

  // What the source answers -------------------------------------------------------------------------------------

  // Takes an answer in; true if it brought steps, or another request.
  function take(view) {
    const restarted = view.key !== state.key;
    if (restarted) begin(view);
    state.total = view.total;
    state.status = view.status ?? null;
    const fresh = view.since === state.rows.length ? view.steps : []; // a repeated or late answer is dropped
    if (view.since === 0 && view.header && !state.rows.length) beginText(view);
    for (const row of fresh) state.rows.push(row);
    if (fresh.length) {
      parts.text.rows(fresh);
      parts.scrubber.rows(state.rows);
    }
    if (view.stats && state.rows.length === view.since + view.steps.length) parts.topbar.stats(view.stats);
    if (view.end && !state.end && state.rows.length >= view.total) endText(view);
    Object.assign(state, { damage: view.damage ?? null, dropped: view.dropped ?? [] });
    showState();
    if (fresh.length) followNewest();
    return fresh.length > 0 || restarted;
  }

  function begin(view) {
    Object.assign(state, {
      key: view.key,
      rows: [],
      total: 0,
      step: null,
      node: null,
      view: null,
      end: null,
      place: null,
    });
    state.follow = Boolean(options.live) && !state.wanted;
    state.cache.clear();
    beginText(view);
    parts.topbar.header(view.header ?? null);
    parts.topbar.stats(null);
    parts.scrubber.rows(state.rows);
    parts.scrubber.step(null);
    parts.tree.clear();
    parts.detail.clear();
  }

  function beginText(view) {
    if (view.since === 0) parts.text.begin(view);
    if (view.header) parts.topbar.header(view.header);
  }

  function endText(view) {
    state.end = view.end;
    parts.text.end(END_SAYS[view.end] ?? view.end, view.tail);
    if (view.end_message) setProblem(view.end_message);
    if (state.follow) drawStep();
  }

  // Choosing a step and a node ------------------------------------------------------------------------------------

  function followNewest() {
    const newest = state.rows.length - 1;
    if (state.follow) choose(newest, {});
    else if (state.wanted) goToWanted();
    else if (state.step === null) choose(0, {});
  }

  // The step (and node) asked for from outside, or as near as the trace has come; the rest when it gets there.
  function goToWanted() {
    const { wanted } = state;
    choose(wanted.step, {});
    if (wanted.step >= state.rows.length) state.wanted = wanted;
    else if (wanted.node !== null) pickWhenShown(wanted.node);
  }

  function choose(i, { byReader = false, place = null }) {
    if (!state.rows.length) return;
    const at = clamp(i, 0, state.rows.length - 1);
    state.wanted = null;
    if (byReader) setPlaying(false);
    if (byReader) setFollow(Boolean(options.live) && !state.end && at === state.rows.length - 1 && place === null);
    if (at !== state.step) state.node = null;
    Object.assign(state, { step: at, place });
    state.tell = byReader;
    if (place !== null && state.view?.i === at) applyPlace();
    parts.scrubber.step(at);
    loadStep();
  }

  function chooseNode(index, byReader) {
    if (!state.view) return;
    Object.assign(state, { node: index, place: null });
    if (byReader && state.follow) setFollow(false);
    if (byReader) options.onSelect?.(state.view.i, index);
    drawStep();
  }

  function applyPlace() {
    state.node = nodeOfPlace(state.view, state.place);
    state.place = null;
  }

  function setFollow(on) {
    state.follow = on;
    showTransport();
  }

  function toggleFollow(on) {
    setPlaying(false);
    setFollow(on);
    if (on) choose(state.rows.length - 1, {});
  }

  // Shows step after step, from the first again where the last was reached; any choice of the reader ends it.
  function setPlaying(on) {
    state.playing = on && state.rows.length > 1;
    scope.cancel("play");
    showTransport();
    if (!state.playing) return;
    if (state.step === state.rows.length - 1) choose(0, {});
    scope.later("play", PLAY_EVERY, playOn);
  }

  function playOn() {
    choose(state.step + 1, {});
    if (state.step >= state.rows.length - 1) setPlaying(false);
    else scope.later("play", PLAY_EVERY, playOn);
  }

  function showTransport() {
    const live = Boolean(options.live) && !state.end;
    parts.scrubber.follow(live, state.follow);
    parts.scrubber.play(!live, state.playing);
  }

  // One request at a time; a step that nobody wants any more is skipped.
  async function loadStep() {
    const i = state.step;
    if (state.cache.has(i)) return arrived(state.cache.get(i));
    if (state.loading) return undefined;
    state.loading = true;
    const [asked, key] = [state.source, state.key];
    let view = null;
    try {
      view = await asked.step(i);
    } catch (error) {
      if (!scope.closed) setProblem(`Step ${i} can't be read (${messageOf(error)}).`);
    }
    state.loading = false;
    if (scope.closed) return undefined;
    if (asked !== state.source || key !== state.key) return state.step === null ? undefined : loadStep();
    if (view) remember(state.cache, i, view);
    if (view && (i === state.step || state.follow)) arrived(view);
    return i === state.step ? undefined : loadStep();
  }

  function arrived(view) {
    state.view = view;
    if (state.place !== null && view.i === state.step) applyPlace();
    if (state.node !== BONUS && !view.nodes[state.node]) state.node = null;
    drawStep();
    if (state.tell) options.onSelect?.(view.i, state.node ?? defaultNode(view));
    state.tell = false;
  }

  // What surrounds the data -----------------------------------------------------------------------------------------

  function setProblem(sentence_) {
    state.problem = sentence_;
    showState();
  }

  function showState() {
    const live = options.live && !state.end && !(state.damage && state.rows.length);
    parts.topbar.state(live ? (state.status?.state === "paused" ? "paused" : "live") : "recorded");
    const sentences = [state.problem, state.damage, ...state.dropped, state.status?.error].filter(Boolean);
    parts.banner.textContent = sentences.join(" · ");
    parts.banner.hidden = !sentences.length;
    showTransport();
    parts.tree.message(state.rows.length ? null : waitingCard(state));
  }

  function onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey) return;
    const target = event.composedPath()[0];
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable) return;
    if (target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ")) return;
    if (usesKey(event, target)) event.preventDefault();
  }

  function usesKey(event, target) {
    if (parts.tree.contains(target) || event.key === "[" || event.key === "]") {
      if (parts.tree.onKey(event)) return true;
    }
    if (event.altKey || event.shiftKey) return false;
    const last = state.rows.length - 1;
    if (event.key === "ArrowLeft") choose(state.step - 1, { byReader: true });
    else if (event.key === "ArrowRight") choose(state.step + 1, { byReader: true });
    else if (event.key === "Home") choose(0, { byReader: true });
    else if (event.key === "End") choose(last, { byReader: true });
    else if ((event.key === "f" || event.key === "F") && options.live) toggleFollow(!state.follow);
    else if ((event.key === "p" || event.key === "P") && (!options.live || state.end)) setPlaying(!state.playing);
    else return false;
    return true;
  }

  function update(change = {}) {
    if ("source" in change) Object.assign(state, { source: change.source, key: undefined });
    if ("live" in change) options = { ...options, live: change.live };
    if (change.live || "source" in change) {
      if (change.source) state.end = null;
      poller.poll();
    }
    if (Number.isInteger(change.step)) {
      setFollow(false);
      state.wanted = { step: change.step, node: change.node ?? null };
      if (state.rows.length) goToWanted();
    } else if ("node" in change) pickWhenShown(change.node);
    if ("follow" in change) toggleFollow(Boolean(change.follow));
  }

  function pickWhenShown(index) {
    state.node = index;
    if (state.view?.i === state.step) drawStep();
  }

  scope.listen(root, "keydown", onKey);
  scope.listen(document, "visibilitychange", () => !document.hidden && options.live && !state.end && poller.poll());
  watchTheme(scope, root, () => {
    parts.tree.onTheme();
    parts.scrubber.paint();
  });
  parts.topbar.header(null);
  showState();
  poller.poll();
  return {
    update,
    destroy: () => scope.close(),
    focus: () => root.focus({ preventScroll: true }),
    state: () => ({
      step: state.step,
      node: state.node,
      follow: state.follow,
      steps: state.rows.length,
      end: state.end,
      drawMs: state.drawMs,
    }),
  };
}

const END_SAYS = {
  stop: "end: a stop token",
  length: "end: max tokens reached",
  context: "end: the context is full",
  stopped: "end: stopped by hand",
  error: "end: an error",
};

function newState(source, options) {
  return {
    source,
    key: undefined, // of the request shown
    rows: [], // compact rows of all steps
    total: 0,
    end: null,
    status: null,
    damage: null,
    dropped: [],
    problem: null,
    step: null, // place in rows
    node: null, // index, "bonus", or null for the default of the step
    place: null, // token of the step that was clicked in the text
    wanted: Number.isInteger(options.step) ? { step: options.step, node: options.node ?? null } : null,
    follow: false,
    view: null, // step view drawn
    cache: new Map(),
    loading: false,
    playing: false,
    tell: false,
    drawMs: null, // what drawing the last step took, layout of the page not counted
  };
}

function buildParts(root, scope, { onStep, onFollow, onPlay, onNode, onText }) {
  const topbar = createTopbar(root);
  const banner = append(root, make("div", "ddviz-banner")).lastChild;
  banner.setAttribute("role", "status");
  banner.hidden = true;
  const scrubber = createScrubber(root, { scope, root, onStep, onFollow, onPlay });
  const panes = append(root, make("div", "ddviz-panes")).lastChild;
  const text = createText(panes, { scope, onPick: onText });
  const tree = createTree(panes, { scope, root, onSelect: onNode });
  const detail = createDetail(panes, {
    onSelect: (index) => {
      onNode(index);
      tree.focus(); // the button that was pressed is gone with the old panel
    },
  });
  const wide = button("", "wide", "Give the tree the whole width", () => {
    const on = panes.classList.toggle("ddviz-wide");
    wide.setAttribute("aria-pressed", String(on));
  });
  tree.tools.append(wide);
  return { topbar, banner, scrubber, text, tree, detail };
}

function showStep(parts, state) {
  const { view } = state;
  if (!view) return;
  const began = performance.now();
  const index = state.node ?? defaultNode(view);
  parts.text.step(view.i, { follow: state.follow }); // first: it asks where things stand on the page
  parts.text.token(state.node === null ? null : placeOfNode(view, index));
  if (state.drawn !== view) parts.tree.draw(view, index);
  else parts.tree.select(index);
  state.drawn = view;
  parts.detail.draw(view, index);
  state.drawMs = performance.now() - began;
}

// Where the decision fell: the last accepted node, whose distribution gave the bonus.
function defaultNode(view) {
  return view.path.length ? view.path[view.path.length - 1] : view.nodes.length ? 0 : null;
}

// Tokens of a step are its path without the root, then the bonus.
function nodeOfPlace(view, place) {
  return place < view.path.length - 1 ? view.path[place + 1] : BONUS;
}

function placeOfNode(view, index) {
  if (index === BONUS) return view.bonus?.emitted ? view.path.length - 1 : null;
  const place = view.path.indexOf(index) - 1;
  return place >= 0 ? place : null;
}

function remember(cache, i, view) {
  cache.set(i, view);
  if (cache.size > STEPS_KEPT) cache.delete(cache.keys().next().value);
}

function waitingCard({ status, total, end }) {
  const card = make("div", "ddviz-waiting");
  const says = status?.message || (end ? "The trace holds no steps." : total ? "Reading …" : "No steps yet.");
  append(card, make("p", "", says));
  if (status && typeof status.progress === "number") {
    const bar = make("div", "ddviz-progress");
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-valuenow", String(Math.round(100 * status.progress)));
    append(bar, make("span")).lastChild.style.width = `${100 * clamp(status.progress, 0, 1)}%`;
    append(card, bar);
  }
  return card;
}

window.ddviz = { mount };
