// Generate, Pause, Step, Resume, Stop, and where the engine stands. Everything the engine says is set as textContent.
const BUSY = new Set(["prefill", "running", "paused"]);
const LOST = "The app does not answer; is ddviz still running in its terminal? A run under way ends in its trace.";
const NEAR_TIES = new Set(["bfloat16", "float16", "half"]);
const WAITING = new Set(["starting", "fetching", "loading", "prefill"]);
const BUTTONS = {
  generate: { label: "Generate", when: (s) => s === "ready", title: "Begin a run (Shift+Enter in the prompt)" },
  pause: { label: "Pause", when: (s) => s === "running" || s === "prefill", title: "Halt before the next step" },
  step: { label: "Step", when: (s) => s === "ready" || BUSY.has(s), title: "Run one step, then pause; begins a run" },
  resume: { label: "Resume", when: (s) => s === "paused", title: "Run on" },
  stop: { label: "Stop", when: (s) => BUSY.has(s), title: "End the run; its trace is kept" },
};

// On a server that others use too.
const VIEW_ONLY = {
  pause: { label: "Pause view", title: "Halt what you see; the server runs on, others use it too" },
  step: { label: "Step view", title: "Show one more step; the server runs on. Begins a run" },
  resume: { label: "Resume", title: "Show everything up to now, and follow" },
};

function make(tag, name, parent, text = "") {
  const node = document.createElement(tag);
  node.className = `ddviz-${name}`;
  node.textContent = text;
  parent.append(node);
  return node;
}

const bar = element.querySelector(".ddviz-bar");
const buttons = make("div", "buttons", bar);
const problem = make("p", "problem", bar);
const line = make("p", "engine-line", bar);
const dot = make("span", "dot", line);
const message = make("span", "engine-message", line);
const progress = make("progress", "progress", bar);
const log = make("pre", "engine-log", bar);
const restart = make("button", "restart", bar);
const model = make("p", "engine-model", bar);
const whole = make("details", "log", bar); // the whole log, asked for while it is open
make("summary", "log-title", whole, "Log of the server");
const lines = make("pre", "log-lines", whole);
problem.setAttribute("role", "alert");
line.setAttribute("role", "status");
progress.setAttribute("aria-label", "Progress");

for (const [action, { label, title }] of Object.entries(BUTTONS)) {
  const button = make("button", `control ddviz-control-${action}`, buttons, label);
  Object.assign(button, { type: "button", title, disabled: true });
  button.addEventListener("click", () => press(action));
  BUTTONS[action].button = button;
}
restart.type = "button";
restart.addEventListener("click", () => control("restart"));
whole.addEventListener("toggle", () => whole.open && look());

let answer = { state: "starting", message: "" };
let handed = 0; // when Generate was handed to Python, until Python answers
let seenRun; // nonce of the run this page shows
let seenModel; // what the engine offered when this page last looked
let refusal = props.value?.error ?? null; // why Python did not begin a run

function press(action) {
  const begins = action === "generate" || (action === "step" && answer.state === "ready");
  if (!begins) return control(action);
  handed = Date.now();
  refusal = null;
  draw();
  if (action === "step") trigger("generate_step"); // Python reads the form
  else trigger("generate");
}

async function control(action) {
  const reply = await server.control({ action }).catch(() => undefined); // undefined also where the app is gone
  refusal = reply ? (reply.error ?? null) : LOST;
  await look();
}

async function look() {
  answer = (await server.status({ log: whole.open }).catch(() => undefined)) ?? { state: "lost", message: LOST };
  draw();
  if (answer.state === "lost") return;
  const run = answer.run?.nonce ?? null;
  // another page began one, or the engine refused ours; an app that was started again knows of none: the view stays
  if (seenRun !== undefined && run !== null && run !== seenRun) trigger("run");
  seenRun = run;
  const offered = answer.model ? JSON.stringify(answer.model) : (seenModel ?? null); // one that is gone offered it
  if (seenModel !== undefined && offered !== seenModel) trigger("model"); // a page that opens is told by Python
  seenModel = offered;
}

function draw() {
  const now = answer.state;
  if (Date.now() - handed > 3000) handed = 0;
  for (const { button, when } of Object.values(BUTTONS)) button.disabled = !when(now) || handed > 0;
  for (const [action, words] of Object.entries(answer.model?.view_only ? VIEW_ONLY : {})) {
    Object.assign(BUTTONS[action].button, { textContent: words.label, title: words.title });
  }
  bar.dataset.state = now;
  const [sentence, ...tail] = (answer.message || now).split("\n");
  show(problem, refusal ?? answer.error);
  show(message, sentence.charAt(0).toUpperCase() + sentence.slice(1));
  show(log, whole.open ? "" : tail.join("\n").trim());
  show(model, answer.state === "off" ? "" : describe(answer.model));
  dot.className = `ddviz-dot ddviz-dot-${now}`;
  restart.hidden = now !== "failed" && now !== "off";
  restart.textContent = answer.remedy ?? "";
  drawLog();
  progress.hidden = !WAITING.has(now);
  if (typeof answer.progress === "number") progress.value = answer.progress;
  else progress.removeAttribute("value");
}

// Follows the end, unless it was scrolled away from it.
function drawLog() {
  whole.hidden = !answer.logged;
  if (!whole.open || !answer.log?.length) return;
  const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
  show(lines, answer.log.join("\n"));
  if (atEnd) lines.scrollTop = lines.scrollHeight;
}

function show(node, text) {
  const isNew = node.textContent !== (text ?? "");
  if (isNew) node.textContent = text ?? "";
  node.hidden = !text;
  if (isNew && node === log) log.scrollTop = log.scrollHeight; // last words
}

function describe(info) {
  if (!info) return "";
  const parts = [info.target, info.device, info.dtype, `context ${info.context_length}`];
  const near = !NEAR_TIES.has(info.dtype) ? "" : `\n${info.dtype} may part from autoregressive at near-ties.`;
  const why = info.note ? `\n${info.note}` : "";
  return parts.join(" · ") + near + why;
}

async function follow() {
  if (!element.isConnected) return;
  if (bar.offsetParent !== null && !document.hidden) await look();
  setTimeout(follow, answer.state === "ready" ? 1000 : 400);
}

watch("value", () => {
  handed = 0;
  refusal = props.value?.error ?? null;
  look();
});
draw();
follow();
