// Task `pack`: which KV rows stay at commit, and where they go. Checked against the slots that the engine recorded.

function packPiece({ lesson, answer, step: stepOf, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-pack");
  const says = append(box, make("p")).lastChild;
  const rows = append(box, make("div", "ddviz-learn-slots")).lastChild;
  let [view, kept] = [null, 0];
  stepOf(lesson.step).then((found) => {
    view = found;
    draw();
  });

  function draw() {
    const { src_slots: from, dst_slots: to, committed_len: length } = view.commit;
    const isOver = kept === from.length;
    says.textContent = isOver
      ? `Slots up to ${to[to.length - 1]} are committed, ${length} rows. The next step writes over those after it.`
      : `Slots below ${view.prefix_len} are committed. Which node's row belongs into slot ${to[kept]}?`;
    const focused = rows.getRootNode().activeElement;
    const place = [...rows.children].indexOf(focused);
    rows.replaceChildren(...view.nodes.map((node) => slotOf(node, from.slice(0, kept), to, isOver)));
    if (place >= 0 && !isOver) rows.children[place].focus();
  }

  function slotOf(node, taken, to, isOver) {
    const place = to.slice(0, taken.length).indexOf(node.slot); // what was moved here
    const held = place >= 0 ? view.nodes.find(({ slot }) => slot === taken[place]) : isOver ? null : node;
    const says = `Slot ${node.slot}: ${held ? `node ${held.i}, ${held.label}` : "free"}`;
    const one = button("ddviz-learn-slot", "", says, () => take(node));
    if (place >= 0) one.classList.add("ddviz-learn-kept");
    one.disabled = isOver;
    append(one, make("b", "", String(node.slot)), held ? tokenText(held.label, 8) : make("span", "ddviz-muted", "free"));
    return append(one, make("span", "ddviz-muted", held ? `node ${held.i}` : ""));
  }

  function take(node) {
    const { src_slots: from, dst_slots: to } = view.commit;
    if (node.slot !== from[kept]) {
      const isOnPath = view.path.includes(node.i);
      if (isOnPath) return answer.wrong(`Node ${node.i} is on the path, but not next.`);
      return answer.wrong(`Node ${node.i} is ${node.status}: its row is not kept.`);
    }
    const isThere = from[kept] === to[kept];
    const moved = isThere ? `stays in slot ${to[kept]}` : `goes from slot ${from[kept]} to slot ${to[kept]}`;
    kept += 1;
    const said = `The row of node ${node.i} ${moved}.`;
    if (kept === from.length) {
      answer.right(said);
      reveal();
    } else answer.note(`✓ ${said}`);
    return draw();
  }

  return { element: box };
}
