// What a viewer inside Gradio pulls from: the server functions of its panel, asked for the trace of an id.
// Joined in front of the script of each panel, which defines `stage`.

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

// isShown() tells whether the viewer that asks is still the one; viewOf() is that viewer.
function sourceOf(trace, isShown, viewOf) {
  const wanted = () => element.isConnected && isShown();
  return {
    async poll(since) {
      await shown(wanted);
      const answer = await ask("poll", { trace, since });
      if (wanted() && !answer.growing) viewOf().update({ live: false }); // finished, or its engine died
      return answer;
    },
    step: (index) => ask("step", { trace, index }),
    batch: (index) => ask("batch", { trace, index }),
    findings: () => ask("findings", { trace }),
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
