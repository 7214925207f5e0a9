// The five stages of a step: the bar that chooses one, and the pane below the tree that shows it. A new stage panel
// is one line in STAGES; without a stage (the overview) the tree has the whole height.
//
// create(viewer) returns:
//
//   element                          what stands in the pane
//   draw(step, { node, moment, quick })  all of it, or (quick) only what is in view: while steps fly by under a held
//                                    key the rest would never be seen; it follows when they rest
//   select(step, node, moment)       another node of the same step; optional
//   hover(nodes), theme()            optional
//
// moments(step): how often the stage can be walked on with < and > (pops of the heap); 0 = it stands still.
// differs(step): sentences about what the recorded numbers contradict. differs and moments may read anything.

const STAGES = {
  draft: { create: createDraftStage, says: "the drafter's candidates for every position, from one forward" },
  build: {
    create: createBuildStage,
    says: "the best-first search: the best offer is popped, and offers its next sibling and its first child",
    moments: (step) => (searchOf(step) ? searchOf(step).nodes.length - 1 : 0),
    moment: "pop",
    differs: (step) => (searchOf(step)?.differs ?? []).map(({ says }) => says),
  },
  compile: {
    create: createCompileStage,
    says: "the tree as the kernels read it: links, flat indices, positions, slots, and who sees whom",
    differs: compileDifferences,
  },
  verify: {
    create: createVerifyStage,
    says: "one forward of the target over all nodes, then the decision",
    differs: verifyDifferences,
  },
  commit: {
    create: createCommitStage,
    says: "what stays: the accepted path, its KV, its tokens, and the bonus as the next root",
    moments: (step) => step.path.length,
    moment: "token",
    differs: commitDifferences,
  },
};
const STAGE_WALK = [null, ...Object.keys(STAGES)]; // null: the overview

function isStage(name) {
  return Object.hasOwn(STAGES, name ?? "");
}

const stageDifferences = (() => {
  const known = new WeakMap(); // step view -> { stage: sentences }
  return function of(step, name) {
    if (!known.has(step)) known.set(step, {});
    const found = known.get(step);
    return (found[name] ??= STAGES[name].differs?.(step) ?? []);
  };
})();

// How far the stage of a step was walked; the end, unless the reader walked back.
function momentOf({ stage, moment }, step) {
  const last = stage ? (STAGES[stage].moments?.(step) ?? 0) : 0;
  return moment?.step === step ? Math.min(moment.at, last) : last;
}

// How the tree looks in a stage: nodes that are not there (yet) are ghosts, those that the heap offers are half there,
// links are arrows in place of edges.
function treeLook(state, step) {
  const at = momentOf(state, step);
  const search = state.stage === "build" ? searchOf(step) : null;
  const offered = new Set(search ? frontierAt(search, at).map(({ popped }) => popped) : []);
  const isGone = {
    draft: (index) => index === BONUS,
    build: (index) => index === BONUS || (search !== null && index > at),
    compile: (index) => index === BONUS,
    commit: (index) => (index === BONUS ? at < step.path.length : !step.path.slice(0, at + 1).includes(index)),
  }[state.stage];
  return {
    key: `${state.stage} ${at}`,
    ghostOf: (index) => (!isGone?.(index) ? null : offered.has(index) ? "offered" : "ghost"),
    links: state.stage === "compile",
  };
}

function stageCommands(viewer) {
  const { state } = viewer;

  function stage(name) {
    const chosen = isStage(name) ? name : null;
    closeViews(viewer);
    if (chosen === state.stage) return;
    Object.assign(state, { stage: chosen, moment: null });
    viewer.panels.stage();
    viewer.address.draw();
  }

  function momentTo(at) {
    const { view } = state;
    const last = view && state.stage ? (STAGES[state.stage].moments?.(view) ?? 0) : 0;
    if (!last) return false;
    closeViews(viewer);
    viewer.player.stop();
    state.moment = { step: view, at: clamp(at, 0, last) };
    viewer.address.draw();
    return true;
  }

  return {
    stage, // draft, build, compile, verify, commit, or null: the overview
    stageBy: (by) => stage(STAGE_WALK[clamp(STAGE_WALK.indexOf(state.stage) + by, 0, STAGE_WALK.length - 1)]),
    momentTo,
    momentBy: (by) => (state.view ? momentTo(momentOf(state, state.view) + by) : false),
    hover(nodes) {
      if (String(nodes) === String(state.hovered)) return;
      state.hovered = nodes;
      viewer.panels.hover(nodes);
    },
  };
}

function createStageBar(parent, viewer) {
  const { commands, state } = viewer;
  const bar = append(parent, make("nav", "ddviz-stagebar")).lastChild;
  bar.setAttribute("aria-label", "Stages of the step");
  const tabs = STAGE_WALK.map((name, k) => {
    const tab = button("ddviz-stagetab", "", name ? `Stage ${k} of 5: ${name}` : "Overview: the tree alone", () =>
      commands.stage(name),
    );
    const [time, flaw] = [make("span", "ddviz-muted ddviz-stage-ms"), make("b", "ddviz-wrong-sign")];
    const label = make("span", "ddviz-stage-name", name ?? "Overview");
    label.dataset.name = label.textContent;
    append(
      tab,
      name ? make("i", "ddviz-stage-number", String(k)) : null,
      label,
      flaw,
      time,
    );
    bar.append(tab);
    return { name, tab, time, flaw };
  });
  viewer.views = make("div", "ddviz-tools ddviz-views"); // buttons of the views (views.js)
  append(bar, make("span", "ddviz-muted ddviz-stage-keys", ", . stage   < > within it"), viewer.views);

  function show() {
    for (const { name, tab } of tabs) {
      if (name === state.stage) tab.setAttribute("aria-current", "step");
      else tab.removeAttribute("aria-current");
    }
  }

  function write(step) {
    for (const { name, tab, time, flaw } of tabs.slice(1)) {
      const ms = step?.stages[name];
      say(time, ms === undefined ? "" : `${milliseconds(ms)} ms`);
      const differs = step ? stageDifferences(step, name) : [];
      say(flaw, differs.length ? "≠" : "");
      tab.title = differs.length ? `${name}: ${differs.length} differences to the recorded numbers` : `Stage: ${name}`;
    }
  }

  show();
  return { stage: show, draw: ({ view }) => write(view), clear: () => write(null) };
}

function createStages(parent, viewer) {
  const { scope, state, commands } = viewer;
  const pane = append(parent, make("section", "ddviz-pane ddviz-stage-pane")).lastChild;
  const [title, says] = [make("h3", "ddviz-title"), make("span", "ddviz-muted")];
  const walk = newWalk(commands);
  const wrong = make("div", "ddviz-wrong");
  const body = newScroller("ddviz-stage-body", "Stage of the step");
  append(pane, append(make("header", "ddviz-pane-head"), title, says, walk.element), wrong, body);
  const panels = {}; // made when first shown
  let drawn = []; // [step, stage, moment, node]
  const flies = newFlight(scope, "stage");

  scope.listen(body, "click", (event) => {
    const element = event.target.closest("[data-node]");
    if (element && !event.target.closest("button")) commands.choose(nodesOf(element)[0]);
  });

  function stage() {
    const { stage: name } = state;
    parent.classList.toggle("ddviz-staged", name !== null);
    drawn = [];
    keepFocus(viewer.root, () => (pane.hidden = !name));
    if (!name) return;
    panels[name] ??= STAGES[name].create(viewer);
    title.textContent = `${STAGE_WALK.indexOf(name)} · ${name[0].toUpperCase()}${name.slice(1)}`;
    says.textContent = STAGES[name].says;
    says.title = STAGES[name].says;
    body.setAttribute("aria-label", `Stage ${name}`);
    keepFocus(viewer.root, () => body.replaceChildren(panels[name].element));
    body.scrollTo(0, 0);
  }

  function draw({ view: step, node }) {
    const name = state.stage;
    if (!name) return;
    const moment = momentOf(state, step);
    const isSame = drawn[0] === step && drawn[1] === name && drawn[2] === moment;
    if (isSame && drawn[3] === node) return;
    drawn = [step, name, moment, node];
    if (isSame) return panels[name].select?.(step, node, moment);
    const differs = stageDifferences(step, name);
    say(wrong, differs.length ? `≠ Differs: ${differs.slice(0, 3).join("; ")}${more(differs.length - 3)}.` : "");
    walk.show(STAGES[name].moments?.(step) ?? 0, moment, STAGES[name].moment);
    const quick = flies(drawRest);
    return keepFocus(body, () => panels[name].draw(step, { node, moment, quick }));
  }

  function drawRest() {
    const [step, name, moment, node] = drawn;
    if (!step || name !== state.stage) return;
    keepFocus(body, () => panels[name].draw(step, { node, moment, quick: false }));
    viewer.panels.highlight.draw({ node });
  }

  stage();
  return {
    stage,
    draw,
    hover: (nodes) => state.stage && panels[state.stage].hover?.(nodes),
    theme: () => state.stage && panels[state.stage].theme?.(),
    clear() {
      drawn = [];
      say(wrong, "");
      walk.show(0, 0, "");
      if (state.stage) stage();
    },
  };
}

function more(count) {
  return count > 0 ? `; and ${count} more` : "";
}

// A slider and two buttons that walk within a stage.
function newWalk({ momentTo, momentBy }) {
  const box = make("div", "ddviz-tools ddviz-walk");
  const [slider, count] = [make("input", "ddviz-slider"), make("span", "ddviz-muted")];
  slider.type = "range";
  slider.min = "0";
  slider.addEventListener("input", () => momentTo(Number(slider.value)));
  append(
    box,
    count,
    iconButton("previous", "Back within the stage (<)", () => momentBy(-1)),
    slider,
    iconButton("next", "On within the stage (>)", () => momentBy(1)),
  );
  box.hidden = true;
  return {
    element: box,
    show(last, at, name) {
      box.hidden = last === 0;
      slider.max = String(last);
      slider.value = String(at);
      slider.setAttribute("aria-label", `${name} of the stage`);
      slider.setAttribute("aria-valuetext", `${name} ${at} of ${last}`);
      count.textContent = `${name} ${at} of ${last}`;
    },
  };
}

// A calm sentence where the trace holds nothing to show.
function notRecorded(...sentences) {
  return append(make("div", "ddviz-absent"), ...sentences.map((text) => make("p", "", text)));
}

// A node's name as a chip: sign and number.
function nodeChip(step, index) {
  const status = index === BONUS ? "bonus" : statusOf(step.nodes[index]);
  const chip = make("span", `ddviz-nodechip ddviz-text-${status}`, nodeName(status, index));
  chip.dataset.node = index;
  return chip;
}

function nodeName(status, index) {
  return `${SIGNS[status]} ${index}`.trim();
}

function tokenText(label, most = 14) {
  const token = make("bdi", "ddviz-token", shorten(label, most));
  token.title = shorten(label, 200);
  return token;
}

// Of the bar along the foot of a cell: a share of its width.
function barSize(share) {
  return `${100 * clamp(share, 0, 1)}% 3px`;
}

function labelOf(step, token) {
  return step.labels[token] ?? step.nodes.find((node) => node.id === token)?.label ?? `id ${token}`;
}

function tableOf(className, caption, head, rows) {
  const table = make("table", `ddviz-table ${className}`);
  const line = make("tr");
  for (const cell of head) line.append(cell instanceof Element ? cell : heading("", cell, "col"));
  table.setAttribute("aria-label", caption);
  return append(table, append(make("thead"), line), append(make("tbody"), ...rows));
}
