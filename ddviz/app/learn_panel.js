// Joins the course to Gradio: mounts it when its tab is first shown, and gives it the app's traces to pull from.
const stage = element.querySelector(".ddviz-stage");
let course = null;

const linked = () => new URLSearchParams(location.hash.slice(1)).get("lesson");

async function begin() {
  await shown(() => element.isConnected);
  course = ddviz.learn(stage, {
    ...(await ask("course", {})),
    first: linked(),
    load: (name) => ask("lesson", { name }),
    source: (trace) => ({
      poll: (since) => ask("poll", { trace, since }),
      step: (index) => ask("step", { trace, index }),
    }),
    onShow: keepLink,
  });
}

// The address names the lesson; the browser's Back leads to the one before.
function keepLink(name) {
  if (name !== linked()) history[linked() ? "pushState" : "replaceState"](null, "", `#lesson=${name}`);
}

// Another link was pasted over this one, or the reader went back.
function followPasted() {
  if (!element.isConnected) return removeEventListener("hashchange", followPasted);
  const name = linked();
  return name && (stage.offsetParent === null ? location.reload() : course?.show(name));
}

addEventListener("hashchange", followPasted);
begin();
