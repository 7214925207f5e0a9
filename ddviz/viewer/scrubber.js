// The scrubber: buttons that go from step to step, where we are, and the chart of all steps (scrubber_chart.js).

function createScrubber(parent, { scope, root, commands }) {
  const box = append(parent, make("section", "ddviz-scrubber")).lastChild;
  const counter = make("span", "ddviz-counter");
  const [now, last] = [make("b"), make("span", "ddviz-muted")];
  const play = iconButton("play", "Play the steps (P)", commands.play);
  const follow = button("ddviz-follow", "", "Follow the newest step (F)", commands.follow);
  const transport = append(
    make("div", "ddviz-transport"),
    iconButton("first", "First step (Home)", () => commands.goTo(0)),
    iconButton("previous", "Previous step (←)", () => commands.goBy(-1)),
    append(counter, make("span", "ddviz-muted", "step "), now, last),
    iconButton("next", "Next step (→)", () => commands.goBy(1)),
    iconButton("last", "Last step (End)", commands.goToLast),
    play,
    follow,
  );
  box.append(transport);
  const chart = createChart(box, { scope, root, onStep: (i) => commands.goTo(i) });
  let rows = [];

  function goTo(i) {
    now.textContent = rows[i] ? String(rows[i].index) : ABSENT;
    chart.mark(i);
  }

  function setRows(all) {
    rows = all;
    last.textContent = rows.length ? ` / ${rows[rows.length - 1].index}` : "";
    chart.setRows(rows);
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
    theme: chart.paint,
    rows: (fresh, all) => setRows(all),
    status({ isLive, follow: isFollowing, playing }) {
      keepFocus(chart.element, () => {
        play.hidden = isLive;
        follow.hidden = !isLive;
      });
      play.setAttribute("aria-pressed", String(playing));
      play.querySelector("path").setAttribute("d", playing ? ICONS.pause : ICONS.play);
      follow.setAttribute("aria-pressed", String(isFollowing));
      follow.textContent = isFollowing ? "● Following" : "○ Follow";
    },
  };
}
