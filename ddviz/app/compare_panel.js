// Joins the comparison to Gradio: mounts both viewers on the traces that props.value names.
const stage = element.querySelector(".ddviz-stage");
let mounted = null; // {key, pair, names}

// As in viewer_panel.js: a picker says its trace again when it is left.
function isOnlyLeft(value) {
  return value && mounted && namesOf(value) === mounted.names && document.activeElement !== document.body;
}

function namesOf({ a, b }) {
  return `${a.trace} ${b.trace} ${a.live} ${b.live}`;
}

async function draw() {
  const value = props.value;
  const key = value ? String(value.nonce) : null;
  stage.classList.toggle("ddviz-is-empty", !value);
  if (key === (mounted?.key ?? null) || isOnlyLeft(value)) return;
  mounted?.pair?.destroy();
  mounted = value && { key, pair: null, names: namesOf(value) };
  if (!value) return;
  await shown(() => mounted?.key === key);
  const diff = await ask("compare", { a: value.a.trace, b: value.b.trace });
  if (mounted?.key !== key) return;
  const side = (name) => ({
    source: sourceOf(value[name].trace, () => mounted?.key === key, () => mounted.pair[name]),
    exporter: exporterOf(value[name].trace),
    live: value[name].live,
  });
  const link = ddviz.readLink(location.hash);
  const isLinked = link.trace === value.a.link && link.with === value.b.link;
  mounted.pair = ddviz.compare(stage, {
    a: side("a"),
    b: side("b"),
    diff,
    position: isLinked ? link.position : null,
    onLink: (position) => keepLink(value, position),
  });
}

function keepLink(value, position) {
  if (stage.offsetParent === null) return;
  const link = { trace: value.a.link, with: value.b.link, position };
  history.replaceState(null, "", ddviz.writeLink(link));
}

// Another link was pasted over this one.
function followPasted() {
  if (!element.isConnected) return removeEventListener("hashchange", followPasted);
  if (stage.offsetParent === null || !location.hash) return undefined;
  const link = ddviz.readLink(location.hash);
  const isSame = link.trace === props.value?.a.link && link.with === props.value?.b.link;
  return isSame && link.position !== null ? mounted?.pair?.goTo(link.position) : location.reload();
}

watch("value", draw);
addEventListener("hashchange", followPasted);
draw();
