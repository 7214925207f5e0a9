// The requests of a server, newest first, as they come; a click shows one in the viewer beside it.
const panel = element.querySelector(".ddviz-requests");
const title = document.createElement("h3");
const list = document.createElement("ul");
const none = document.createElement("p");
title.textContent = "Requests on this server";
none.textContent = "None is traced yet. Any client's request appears here once it asks to be traced.";
panel.append(title, none, list);

let chosen = null;
let drawn = "";

function draw(requests) {
  const now = JSON.stringify([requests, chosen]);
  if (now === drawn) return;
  drawn = now;
  none.hidden = requests.length > 0;
  list.replaceChildren(...requests.map(item));
}

function item(request) {
  const row = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = request.title;
  button.title = request.live ? `${request.title}, under way` : request.title;
  button.classList.toggle("ddviz-is-live", request.live);
  button.setAttribute("aria-pressed", String(request.id === chosen));
  button.addEventListener("click", () => open(request.id));
  row.append(button);
  return row;
}

function open(trace) {
  chosen = trace;
  trigger("open", { trace });
  look();
}

async function look() {
  const answer = await server.requests({}).catch(() => undefined);
  if (answer?.requests) draw(answer.requests);
}

async function follow() {
  if (!element.isConnected) return;
  if (panel.offsetParent !== null && !document.hidden) await look();
  setTimeout(follow, 1000);
}

follow();
