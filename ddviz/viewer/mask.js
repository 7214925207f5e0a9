// The attention mask as a matrix: a row per node that looks, a column per node that is seen, under the arrays'
// columns. What differs from the tree is red and crossed.

const [MASK_COLUMN, MASK_ROW, MASK_NAMES] = [36, 15, 96]; // px; the first two as .ddviz-arrays has them

function createMask(root, commands) {
  const box = make("div", "ddviz-mask-box");
  const canvas = make("canvas", "ddviz-mask");
  const says = make("p", "ddviz-note-line");
  const [bands, palette] = [[make("i"), make("i"), make("i"), make("i")], newPalette(root)];
  bands.forEach((band, k) => (band.className = `ddviz-band ddviz-band-${k < 2 ? "chosen" : "lit"}`));
  canvas.setAttribute("role", "img");
  append(box, append(make("div", "ddviz-mask-plot"), canvas, ...bands), says);
  let [step, from, to, selected] = [null, 0, 0, null];

  // Row and column under the pointer, however the page is zoomed; column null = left of them.
  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const scale = box.height / Math.max(1, (to - from) * MASK_ROW);
    const [x, y] = [(event.clientX - box.x) / scale, (event.clientY - box.y) / scale];
    return [from + Math.floor(y / MASK_ROW), x < MASK_NAMES ? null : from + Math.floor((x - MASK_NAMES) / MASK_COLUMN)];
  }

  canvas.addEventListener("pointermove", (event) => {
    const [i, j] = cellAt(event);
    if (!step?.nodes[i]) return;
    commands.hover([i]);
    say(says, maskSentence(step, i, j));
  });
  canvas.addEventListener("pointerleave", () => {
    commands.hover([]);
    if (step) say(says, maskSentence(step, selected, null));
  });
  canvas.addEventListener("click", (event) => {
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
    const [width, height] = [MASK_NAMES + (to - from) * MASK_COLUMN, (to - from) * MASK_ROW];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
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

function paintMatrix(context, step, from, to, colours) {
  context.font = LABEL_FONT.replace("12px", "11px");
  context.textBaseline = "middle";
  for (let i = from; i < to; i++) {
    const [y, node, expected] = [(i - from) * MASK_ROW, step.nodes[i], seenBy(step, i)];
    context.globalAlpha = 1;
    context.fillStyle = colours.muted;
    context.textAlign = "right";
    context.fillText(node ? `${fitLabel(node.label, 58)} ${i}` : "pad", MASK_NAMES - 8, y + MASK_ROW / 2);
    for (let j = from; j < to; j++)
      paintBit(context, MASK_NAMES + (j - from) * MASK_COLUMN, y, {
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
