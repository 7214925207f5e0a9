// What the doctor found, as a list under the text: a click goes to the step and the node, D to the next one.
//
// In:  source.findings() -> Promise of { findings }, asked once the trace is whole; null while it can't be told.
//      A finding is { rule, severity, step, node, message, cause, look_at } (check/rules.py); step is its index.
// Not here: the rules, which run where the trace is (app/findings.py), or ran when the page was exported.

const SEVERITIES = { fault: ["✗", "fault"], notice: ["i", "notice"] };

function createFindings(box, viewer) {
  const { scope, state } = viewer;
  const pane = append(box.querySelector(".ddviz-text-pane") ?? box, make("section", "ddviz-findings")).lastChild;
  pane.setAttribute("aria-label", "Findings of the doctor");
  const says = make("span", "ddviz-muted");
  says.setAttribute("role", "status");
  const list = make("ul", "ddviz-finding-list");
  append(pane, append(make("header", "ddviz-pane-head"), make("h3", "ddviz-title", "Doctor"), says), list);
  pane.hidden = true;
  let [asked, items] = [null, []]; // what was asked about; { finding, element, button }

  function ask() {
    const { source, key, rows, total } = state;
    pane.hidden = !source.findings || !key;
    if (pane.hidden || rows.length < total) return;
    if (isLive(state)) return say(says, "examined when the run ends");
    const about = `${key} ${total} ${state.end}`;
    if (asked === about) return;
    asked = about;
    say(says, "examining …");
    const isStale = () => scope.closed || asked !== about || state.source !== source;
    source.findings().then(
      (answer) => isStale() || show(answer.findings),
      (error) => isStale() || say(says, `can't be examined (${messageOf(error)})`),
    );
  }

  function show(findings) {
    items = (findings ?? []).map((finding) => newFinding(finding, () => choose(finding)));
    list.replaceChildren(...items.map(({ element }) => element));
    say(says, findings ? countOf(findings) : "examined when the run ends");
  }

  // Its step and node; one of the whole trace only opens.
  function choose(finding) {
    for (const item of items) {
      item.open(item.finding === finding);
      if (item.isOpen()) keepInView(list, item.element, 0);
    }
    const i = state.rows.findIndex((row) => row.index === finding.step);
    if (i < 0) return;
    viewer.player.stop();
    viewer.address.ask(i, finding.node);
    viewer.onGo?.(i);
  }

  // The finding after the one that is open, or before it.
  function go(way) {
    const at = items.findIndex((item) => item.isOpen());
    const next = items[at < 0 && way < 0 ? items.length - 1 : at + way];
    if (!next) return viewer.panels.scrubber.announce(items.length ? "no further finding" : "no findings");
    return choose(next.finding);
  }

  scope.listen(list, "keydown", (event) => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const at = items.findIndex(({ button }) => button === event.composedPath()[0]);
    if (!way || at < 0) return;
    event.preventDefault();
    items[at + way]?.button.focus();
  });

  return {
    go,
    status: ask,
    rows: ask,
    clear() {
      [asked, items] = [null, []];
      say(says, "");
      list.replaceChildren();
    },
  };
}

function countOf(findings) {
  const faults = findings.filter(({ severity }) => severity === "fault").length;
  const notices = findings.length - faults;
  const parts = [[faults, "finding"], [notices, "notice"]].filter(([count]) => count);
  return parts.map(([count, word]) => `${count} ${word}${count === 1 ? "" : "s"}`).join(", ") || "no findings";
}

function newFinding(finding, onChoose) {
  const [sign, name] = SEVERITIES[finding.severity] ?? SEVERITIES.fault;
  const where = [["step", finding.step], ["node", finding.node]].filter(([, number]) => number !== null);
  const place = where.map((pair) => pair.join(" ")).join(", ") || "the whole trace";
  const button = make("button", `ddviz-finding ddviz-finding-${name}`);
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", onChoose);
  const mark = make("span", "ddviz-finding-sign", sign);
  mark.setAttribute("aria-hidden", "true");
  const kind = append(make("span", "ddviz-finding-kind"), `${name}: `, make("b", "", finding.rule));
  const head = append(make("span", "ddviz-finding-head"), mark, kind, make("span", "ddviz-muted", place));
  append(button, head, make("bdi", "ddviz-finding-message", finding.message));
  const more = make("dl", "ddviz-finding-more");
  append(more, make("dt", "", "likely cause"), make("dd", "", finding.cause));
  append(more, make("dt", "", "look at"), make("dd", "", finding.look_at));
  more.hidden = true;
  return {
    finding,
    button,
    element: append(make("li"), button, more),
    isOpen: () => !more.hidden,
    open(on) {
      more.hidden = !on;
      button.setAttribute("aria-expanded", String(on));
      button.classList.toggle("ddviz-is-chosen", on);
    },
  };
}
