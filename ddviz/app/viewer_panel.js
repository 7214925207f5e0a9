// Joins the viewer to Gradio: mounts it on the trace that props.value names, and gives it a source to pull from
// (viewer_source.js).
const stage = element.querySelector(".ddviz-stage");
let mounted = null; // {key, view}
let isOpening = true; // the page: its address may name what another tab is to show

// The address names the trace that is looked at, and what is chosen in it: a copied link opens the same again.
function keepLink(value, chosen) {
  if (stage.offsetParent !== null) history.replaceState(null, "", ddviz.writeLink({ trace: value.link, ...chosen }));
}

function linkTo(value) {
  const link = ddviz.readLink(location.hash);
  return link.trace === value.link ? link : {};
}

// Another link was pasted over this one.
function followPasted() {
  if (!element.isConnected) return removeEventListener("hashchange", followPasted);
  if (stage.offsetParent === null || !location.hash) return undefined;
  const link = ddviz.readLink(location.hash);
  return link.trace === props.value?.link ? mounted?.view.update(link) : location.reload();
}

// A field of the pickers says its trace again when it is left. Who has gone on from there, to another field or into the
// viewer, keeps the view and the focus; after a choice nothing has the focus.
function isOnlyLeft(value) {
  return !value?.live && value?.trace === mounted?.trace && document.activeElement !== document.body;
}

function draw() {
  const value = props.value;
  const key = value ? `${value.trace} ${value.nonce}` : null;
  stage.classList.toggle("ddviz-is-empty", !value);
  if (key === (mounted?.key ?? null) || isOnlyLeft(value)) return;
  mounted?.view.destroy();
  mounted = null;
  if (value?.live && !isOpening) keepLink(value, {}); // a run that begins: the address no longer names the last one
  isOpening = false;
  if (!value) return;
  mounted = { key, trace: value.trace };
  mounted.view = ddviz.mount(stage, sourceOf(value.trace, () => mounted?.key === key, () => mounted.view), {
    ...linkTo(value),
    live: value.live,
    onLink: (chosen) => keepLink(value, chosen),
    onOpen: (other) => (location.hash = ddviz.writeLink({ ...other, panels: ["batch"] })), // followPasted goes there
    exporter: exporterOf(value.trace),
  });
  if (!value.live) mounted.view.focus(); // so that the arrow keys step
}

watch("value", draw);
addEventListener("hashchange", followPasted);
draw();
