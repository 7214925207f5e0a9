// The attention mask as a matrix: a row per node that looks, a column per node that is seen, under the arrays'
// columns. What differs from the tree is red and crossed.

const [MASK_COLUMN, MASK_ROW, MASK_NAMES] = [36, 15, 96]; // px; the first two as .ddviz-arrays has them

function createMask(root, commands) {
  const box = make("div", "ddviz-mask-box");
  const canvas = make("canvas", "ddviz-mask");
  const names = make("canvas", "ddviz-mask-names"); // they stay while the matrix is scrolled
  const says = make("p", "ddviz-note-line");
  const [bands, palette] = [[make("i"), make("i"), make("i"), make("i")], newPalette(root)];
  bands.forEach((band, k) => (band.className = `ddviz-band ddviz-band-${k < 2 ? "chosen" : "lit"}`));
  canvas.setAttribute("role", "img");
  names.setAttribute("aria-hidden", "true");
  const plot = append(make("div", "ddviz-mask-plot"), names, canvas, ...bands);
  append(box, plot, says);
  let [step, from, to, selected] = [null, 0, 0, null];

  // Row and column under the pointer, however the page is zoomed; column null = on the names.
  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const scale = box.height / Math.max(1, (to - from) * MASK_ROW);
    const [x, y] = [(event.clientX - box.x) / scale, (event.clientY - box.y) / scale];
    return [from + Math.floor(y / MASK_ROW), event.target === names ? null : from + Math.floor(x / MASK_COLUMN)];
  }

  plot.addEventListener("pointermove", (event) => {
    const [i, j] = cellAt(event);
    if (!step?.nodes[i]) return;
    commands.hover([i]);
    say(says, maskSentence(step, i, j));
  });
  plot.addEventListener("pointerleave", () => {
    commands.hover([]);
    if (step) say(says, maskSentence(step, selected, null));
  });
  plot.addEventListener("click", (event) => {
    const [i] = cellAt(event);
    if (step?.nodes[i]) commands.choose(i);
  });

  // The row and the column of a node.
  function placeBands(pair, node) {
    const isIn = Number.isInteger(node) && node >= from && node < to;
    for (const band of pair) band.hidden = !isIn;
    if (!isIn) return;
    pair[0].style.cssText = `left:0;width:${MASK_NAMES + (to - from) * MASK_COLUMN}px;top:${(node - from) * MASK_ROW}px;height:${MASK_ROW}px`;
    pair[1].style.cssText = `top:0;height:${(to - from) * MASK_ROW}px;left:${MASK_NAMES + (node - from) * MASK_COLUMN}px;width:${MASK_COLUMN}px`;
  }

  function paint() {
    if (!step?.mask) return;
    const [width, height] = [(to - from) * MASK_COLUMN, (to - from) * MASK_ROW];
    for (const [one, wide] of [[names, MASK_NAMES], [canvas, width]]) one.style.cssText = `width:${wide}px;height:${height}px`;
    paintNames(sharpContext(names, MASK_NAMES, height), step, from, to, palette());
    paintMatrix(sharpContext(canvas, width, height), step, from, to, palette());
  }

  function select(node) {
    selected = node;
    placeBands(bands.slice(0, 2), node);
    if (step) say(says, maskSentence(step, node, null));
  }

  return {
    element: box,
    draw(next, columns, node) {
      [step, [from, to]] = [next, columns];
      to = Math.min(to, next.mask?.length ?? 0);
      canvas.setAttribute("aria-label", "Attention mask: a row per node, a column per node that it sees");
      paint();
      select(node);
      placeBands(bands.slice(2), null);
    },
    select,
    hover: (nodes) => placeBands(bands.slice(2), nodes[0] ?? null),
    theme() {
      palette.forget();
      paint();
    },
  };
}

const MASK_FONT = LABEL_FONT.replace("12px", "11px");

function paintNames(context, step, from, to, colours) {
  Object.assign(context, { font: MASK_FONT, textBaseline: "middle", textAlign: "right", fillStyle: colours.muted });
  for (let i = from; i < to; i++) {
    const node = step.nodes[i];
    const name = node ? `${fitLabel(node.label, 58)} ${i}` : "pad";
    context.fillText(name, MASK_NAMES - 8, (i - from) * MASK_ROW + MASK_ROW / 2);
  }
}

function paintMatrix(context, step, from, to, colours) {
  context.font = MASK_FONT;
  context.textBaseline = "middle";
  for (let i = from; i < to; i++) {
    const [y, node, expected] = [(i - from) * MASK_ROW, step.nodes[i], seenBy(step, i)];
    for (let j = from; j < to; j++)
      paintBit(context, (j - from) * MASK_COLUMN, y, {
        sees: step.mask[i]?.[j] === "1",
        odd: node && (step.mask[i]?.[j] === "1") !== expected.has(j),
        colour: i === j ? colours.muted : colours[node ? statusColour(node) : "faint"],
        colours,
      });
  }
}

function paintBit(context, x, y, { sees, odd, colour, colours }) {
  context.fillStyle = odd ? colours.wrong : sees ? colour : colours.line;
  context.globalAlpha = odd || sees ? 1 : 0.4;
  context.fillRect(x + 1, y + 1, MASK_COLUMN - 2, MASK_ROW - 2);
  if (!odd) return;
  context.fillStyle = colours.panel;
  context.textAlign = "center";
  context.fillText(sees ? "≠ 1" : "≠ 0", x + MASK_COLUMN / 2, y + MASK_ROW / 2);
}

// "node 5 sees the prefix, 0, 2 and itself."
function maskSentence(step, i, j) {
  const row = step.mask?.[i];
  if (!row || !step.nodes[i]) return "";
  const seen = Array.from(row).flatMap((bit, k) => (bit === "1" && k !== i ? [k] : []));
  const self = row[i] === "1" ? "itself" : "not itself";
  const names = seen.length > 12 ? `${seen.length} nodes` : seen.join(", ");
  const all = `Node ${i} sees the committed prefix, ${names ? `${names} and ` : ""}${self}.`;
  if (j === null || j === i || !step.nodes[j]) return all;
  const is = ancestors(step, i).has(j) ? "above it" : "not above it";
  return `${all} Node ${j} is ${is}: ${row[j] === "1" ? "seen" : "not seen"}.`;
}
