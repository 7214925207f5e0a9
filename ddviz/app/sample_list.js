// The samples, in the viewer's place while it is empty (app.css shows the one or the other); a click opens one.
const panel = element.querySelector(".ddviz-samples");
const inner = document.createElement("div");
const title = document.createElement("h3");
const says = document.createElement("p");
const list = document.createElement("ul");
title.textContent = "Samples";
inner.append(title, says, list);
panel.append(inner);

function item(sample) {
  const row = document.createElement("li");
  const button = document.createElement("button");
  const [name, facts] = [document.createElement("b"), document.createElement("span")];
  button.type = "button";
  button.title = sample.about;
  name.textContent = sample.title;
  facts.textContent = sample.facts;
  button.append(name, " ", facts);
  button.addEventListener("click", () => trigger("open", { trace: sample.id }));
  row.append(button);
  return row;
}

async function draw() {
  const { samples } = (await server.samples({}).catch(() => undefined)) ?? {};
  says.textContent = samples?.length
    ? "A click opens one: its text, and the tree of every step."
    : samples
      ? "There is none here."
      : "They can't be listed just now; pick one above.";
  list.replaceChildren(...(samples ?? []).map(item));
  return Boolean(samples);
}

// Asked for when the list is first seen: until then nobody has to read the files.
new IntersectionObserver(async (seen, observer) => {
  if (seen.at(-1).isIntersecting && (await draw())) observer.disconnect();
}).observe(panel);
