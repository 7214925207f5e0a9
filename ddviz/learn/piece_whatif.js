// Task `whatif`: the tree of this step at another budget and cap, and how much of the text it covers (twin_whatif.js).

function whatifPiece({ lesson, answer, scope, step: stepOf, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-whatif");
  const { text, labels, most, reach, cap: askedCap } = lesson.wants;
  const controls = append(box, make("div", "ddviz-learn-sliders")).lastChild;
  const says = append(box, make("p", "ddviz-learn-line-says")).lastChild;
  const charts = append(box, make("div", "ddviz-learn-charts")).lastChild;
  const chart = newRunsChart(charts, lesson.runs);
  const heat = newTemperatureChart(charts, lesson.runs);
  const picture = newPicture(box, scope, "The tree at this budget and cap");
  let view = null;
  const [budget, cap] = [newSlider("budget", 1, most[0], draw), newSlider("topk_cap", 1, most[1], draw)];
  const warm = heat && newSlider("temperature", 0, heat.last, drawHeat);
  const heatSays = make("p", "ddviz-learn-line-says");
  if (heat) {
    charts.after(heatSays);
    heatSays.setAttribute("role", "status");
    warm.value = String(heat.first);
    drawHeat();
  }

  stepOf(lesson.step).then((found) => {
    view = found;
    [budget.value, cap.value] = [String(view.build?.budget ?? 16), String(view.build?.topk_cap || most[1])];
    draw();
  });

  function drawHeat() {
    const k = Number(warm.value);
    warm.previousSibling.textContent = `temperature ${heat.valueOf(k)}`;
    warm.setAttribute("aria-valuetext", String(heat.valueOf(k)));
    heat.draw(k);
    heatSays.textContent = heat.says(k);
  }

  function newSlider(name, low, high, onInput) {
    const slider = make("input", "ddviz-slider");
    Object.assign(slider, { type: "range", min: String(low), max: String(high), step: "1" });
    slider.setAttribute("aria-label", name);
    slider.addEventListener("input", onInput);
    append(controls, append(make("label", "ddviz-learn-slider"), make("span"), slider));
    return slider;
  }

  function draw() {
    const [b, c] = [Number(budget.value), Number(cap.value)];
    const { nodes, path } = treeAt(view.draft, view.nodes[0].id, text, b, c);
    [budget, cap].forEach((slider) => (slider.previousSibling.textContent = `${slider.ariaLabel} ${slider.value}`));
    const length = path.length + 1;
    const taken = labels.slice(0, length).join(" ");
    says.textContent = `Accept length ${length}, ${nodes.length} nodes verified: ${taken}`;
    const drawn = pictureStep(nodes, (token) => labelOf(view, token), path);
    picture.draw(drawn, { mark: path[path.length - 1] ?? 0, says: says.textContent });
    chart?.draw(b, c);
    answer.choice(`budget ${b}, cap ${c}`, () => judge(b, c, length));
  }

  function judge(b, c, length) {
    if (c !== askedCap) return answer.wrong(`Answer with topk_cap ${askedCap}.`);
    if (length < reach) return answer.wrong(`Accept length ${length}: the next token of the text is not in the tree yet.`);
    const least = smallestBudget(view.draft, view.nodes[0].id, text, reach, c, most[0]);
    if (b > least) return answer.wrong(`Accept length ${length}, but a smaller budget has it too.`);
    answer.right(`Budget ${b}.`);
    return reveal();
  }

  return { element: box };
}
