// Joins the viewer to Gradio: mounts it on the trace that props.value names, and gives it a source to pull from.
const stage = element.querySelector(".ddviz-stage");
let mounted = null; // {key, view}

// Nothing is asked for while the tab is not shown: being watched costs the engine time.
async function shown(wanted) {
  while (stage.offsetParent === null) {
    if (!wanted()) return new Promise(() => {}); // the viewer that asked is gone
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function ask(method, request) {
  const answer = (await server[method](request).catch(() => undefined)) ?? { error: "the app does not answer" };
  if (answer.error) throw new Error(answer.error);
  return answer;
}

function sourceOf(trace, key) {
  const wanted = () => element.isConnected && mounted?.key === key;
  return {
    async poll(since) {
      await shown(wanted);
      const answer = await ask("poll", { trace, since });
      if (wanted() && !answer.growing) mounted.view.update({ live: false }); // finished, or its engine died
      return answer;
    },
    step: (index) => ask("step", { trace, index }),
  };
}

// What the Export sheet needs: sizes, and a file that the browser then saves.
function exporterOf(trace) {
  return {
    sizes: () => ask("sizes", { trace }),
    async save(wanted) {
      const { name, type, text, base64 } = await ask("exported", { trace, ...wanted });
      const content = text ?? Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([content], { type }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      return name;
    },
  };
}

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

function draw() {
  const value = props.value;
  const key = value ? `${value.trace} ${value.nonce}` : null;
  stage.classList.toggle("ddviz-is-empty", !value);
  if (key === (mounted?.key ?? null)) return;
  mounted?.view.destroy();
  mounted = null;
  if (!value) return;
  mounted = { key };
  mounted.view = ddviz.mount(stage, sourceOf(value.trace, key), {
    ...linkTo(value),
    live: value.live,
    onLink: (chosen) => keepLink(value, chosen),
    exporter: exporterOf(value.trace),
  });
  if (!value.live) mounted.view.focus(); // so that the arrow keys step
}

watch("value", draw);
addEventListener("hashchange", followPasted);
draw();
