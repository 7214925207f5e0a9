// Task `links`: a compiled tree with one wrong entry at a time; the twin of compile (twin_compile.js) knows which.

const LINK_ROWS = ["next_token", "next_sibling", "position"];

function linksPiece({ lesson, answer, scope, step: stepOf, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-links");
  const picture = newPicture(box, scope, "The tree");
  const grid = append(box, make("div", "ddviz-learn-grid")).lastChild;
  grid.setAttribute("role", "grid");
  grid.setAttribute("aria-label", "The compiled tree; arrow keys move, Enter chooses an entry");
  const { plant: plants } = lesson.wants;
  let [view, right, round, cells] = [null, null, 0, []];
  let at = [0, 0];

  stepOf(lesson.step).then((found) => {
    view = found;
    right = encodeTree(view.nodes.map(({ parent }) => parent), view.prefix_len);
    const nodes = view.nodes.map((node) => ({ ...node, target_prob: null }));
    picture.draw(numberedStep(blindStep({ ...view, nodes })));
    draw();
  });

  // Rows of values as they stand in this round, wrong entry and all.
  function rowsNow() {
    const rows = LINK_ROWS.map((name) => ({ name, values: [...right[name]] }));
    right.mask.forEach((values, i) => rows.push({ name: "mask", i, values: [...values] }));
    const plant = plants[round];
    if (!plant) return rows;
    const row = rows.find(({ name, i }) => name === plant.array && (name !== "mask" || i === plant.at));
    if (plant.array === "mask") row.values[plant.column] = 1 - row.values[plant.column];
    else row.values[plant.at] = plant.value;
    return rows;
  }

  function draw() {
    const rows = rowsNow();
    grid.style.setProperty("--ddviz-columns", view.nodes.length);
    cells = rows.map((row, r) => row.values.map((value, c) => cellOf(row, r, c, value)));
    const head = append(make("div", "ddviz-learn-line"), make("span", "ddviz-learn-name", "node"));
    for (const { i } of view.nodes) append(head, make("b", "", String(i)));
    head.setAttribute("role", "row");
    grid.replaceChildren(head, ...rows.map((row, r) => lineOf(row, r)));
    focusOn(at[0], at[1], false);
  }

  function lineOf({ name, i }, r) {
    const line = make("div", `ddviz-learn-line${r === LINK_ROWS.length ? " ddviz-learn-first" : ""}`);
    line.setAttribute("role", "row");
    return append(line, make("span", "ddviz-learn-name", name === "mask" ? `node ${i} sees` : name), ...cells[r]);
  }

  function cellOf({ name, i }, r, c, value) {
    const cell = make("button", `ddviz-learn-cell${name === "mask" ? ` ddviz-learn-bit-${value}` : ""}`);
    cell.type = "button";
    cell.tabIndex = -1;
    cell.textContent = name !== "mask" ? String(value) : value ? "●" : "";
    const entry = name === "mask" ? `mask[${i}, ${c}]` : `${name}[${c}]`;
    cell.setAttribute("aria-label", `${entry} = ${value}`);
    cell.title = `${entry} = ${value}`;
    cell.addEventListener("click", () => {
      focusOn(r, c);
      choose(name, i ?? c, name === "mask" ? c : null, entry, value);
    });
    return cell;
  }

  function focusOn(r, c, focus = true) {
    cells[at[0]][at[1]].tabIndex = -1;
    at = [clamp(r, 0, cells.length - 1), clamp(c, 0, cells[0].length - 1)];
    cells[at[0]][at[1]].tabIndex = 0;
    if (focus) cells[at[0]][at[1]].focus({ preventScroll: false });
  }

  scope.listen(grid, "keydown", (event) => {
    const [r, c] = at;
    const to = { ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1] }[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    focusOn(...to);
  });

  function choose(array, row, column, entry, value) {
    const plant = plants[round];
    if (!plant) return;
    if (!(plant.array === array && plant.at === row && (array !== "mask" || plant.column === column))) {
      answer.wrong(`${entry} = ${value} is right: ${whyRight(array, row, column, value)}.`);
      return;
    }
    const should = array === "mask" ? 1 - value : right[array][row];
    round += 1;
    const said = `${entry} should be ${should}.`;
    if (round < plants.length) {
      answer.note(`✓ ${said} Mended. Now another entry is wrong: ${round + 1} of ${plants.length}.`);
    } else {
      answer.right(said);
      reveal();
    }
    draw();
    focusOn(...at);
  }

  function whyRight(array, row, column, value) {
    const node = view.nodes[row];
    if (array === "position") return `${view.prefix_len} committed + depth ${node.depth}`;
    if (array === "next_token") return value < 0 ? `node ${row} has no child` : `node ${value} is its first child`;
    if (array === "next_sibling")
      return value < 0 ? `no sibling comes after node ${row}` : `node ${value} has the same parent`;
    if (row === column) return "a node sees itself";
    return value ? `node ${column} is above node ${row}` : `node ${column} is not above node ${row}`;
  }

  return { element: box };
}
