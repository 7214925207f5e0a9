// The scrubber: buttons that go from step to step, jumps, sheets, and the chart of all steps (scrubber_chart.js).

function createScrubber(parent, { scope, root, commands, exporter }) {
  const box = append(parent, make("section", "ddviz-scrubber")).lastChild;
  const counter = button("ddviz-counter", "", "Go to a step (G)", () => commands.sheet("go"));
  const [now, last] = [make("b"), make("span", "ddviz-muted")];
  const play = iconButton("play", "Play the steps (P)", commands.play);
  const speed = speedChoice(commands);
  const follow = button("ddviz-follow", "", "Follow the newest step (F)", commands.follow);
  const transport = append(
    make("div", "ddviz-transport"),
    iconButton("first", "First step (Home)", () => commands.goTo(0)),
    iconButton("previous", "Previous step (←)", () => commands.goBy(-1)),
    append(counter, make("span", "ddviz-muted", "step "), now, last),
    iconButton("next", "Next step (→)", () => commands.goBy(1)),
    iconButton("last", "Last step (End)", commands.goToLast),
    play,
    speed,
    follow,
  );
  const controls = append(make("div", "ddviz-controls"), transport, newToolLine(commands, exporter));
  box.append(controls);
  const chart = createChart(box, { scope, root, onStep: (i) => commands.goTo(i) });
  let [rows, isReading] = [[], false];

  function goTo(i) {
    now.textContent = rows[i] ? String(rows[i].index) : ABSENT;
    chart.mark(i);
  }

  function setRows(all) {
    rows = all;
    now.style.minWidth = `${String(rows[rows.length - 1]?.index ?? "").length}ch`; // no button moves as it counts
    showLast();
    chart.setRows(rows);
  }

  // "/ 2999 …" while the rest is still being read.
  function showLast() {
    last.textContent = rows.length ? ` / ${rows[rows.length - 1].index}${isReading ? " …" : ""}` : "";
  }

  function clear() {
    chart.clear();
    setRows([]);
    goTo(null);
  }

  clear();
  return {
    clear,
    goTo,
    announce: chart.announce,
    theme: chart.repaint,
    rows: (fresh, all) => setRows(all),
    status({ isLive, follow: isFollowing, playing, reading }) {
      isReading = reading !== null;
      showLast();
      keepFocus(chart.element, () => {
        play.hidden = speed.hidden = isLive;
        follow.hidden = !isLive;
      });
      play.setAttribute("aria-pressed", String(playing));
      play.querySelector("path").setAttribute("d", playing ? ICONS.pause : ICONS.play);
      follow.setAttribute("aria-pressed", String(isFollowing));
      follow.textContent = isFollowing ? "● Following" : "○ Follow";
    },
  };
}

function speedChoice(commands) {
  const choice = make("select", "ddviz-select");
  choice.title = "How fast to play";
  choice.setAttribute("aria-label", choice.title);
  for (const [, says] of SPEEDS) append(choice, make("option", "", says));
  choice.addEventListener("change", () => commands.speed(SPEEDS[choice.selectedIndex][0]));
  return choice;
}

// Jumps to the next step worth stopping at, and the sheets.
function newToolLine(commands, exporter) {
  const line = append(make("div", "ddviz-tool-line"), make("span", "ddviz-muted", "next"));
  const key = { low: "L", top1: "X", tie: "T" };
  for (const [kind, { label, says }] of Object.entries(JUMPS)) {
    const title = `Next ${says} (${key[kind]}; back: Shift+${key[kind]})`;
    append(line, button("ddviz-small", label, title, (event) => commands.jump(kind, event.shiftKey ? -1 : 1)));
  }
  append(line, make("span", "ddviz-gap"), button("ddviz-small", "find", "Find token text (/)", () => commands.sheet("find")));
  if (exporter) append(line, button("ddviz-small", "export", "Export (E)", () => commands.sheet("exports")));
  return append(line, button("ddviz-small", "keys", "All keys (?)", () => commands.sheet("keys")));
}
