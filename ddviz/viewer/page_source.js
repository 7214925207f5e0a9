// The source of an exported page: its own data elements, each a packed answer (pack.py says how they are written).
//
// In:  script elements with data-ddviz = poll, labels, steps, and perhaps findings.
// Out: { poll(since), step(i) } and perhaps { findings() }, as `mount` takes it.
// A block of steps is unpacked when one of them is asked for; the last blocks are remembered.

const BLOCKS_KEPT = 6;
const BASE85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const LONG_LIST = 8; // as in pack.py

function newPageSource(page) {
  const elements = (name) => Array.from(page.querySelectorAll(`script[data-ddviz="${name}"]`));
  let [polls, blocks] = [elements("poll"), elements("steps")];
  const perBlock = Number(blocks[0]?.dataset.count ?? 1);
  const labels = inflate(elements("labels")[0].textContent);
  const kept = new Map(); // place of a block -> promise of its step views, the latest used last

  // The script stands before most of the data: what is not there yet is there when the page has been read.
  async function arrived(find) {
    if (!find() && page.readyState === "loading") {
      await new Promise((done) => page.addEventListener("DOMContentLoaded", done, { once: true }));
    }
    if (!find()) [polls, blocks] = [elements("poll"), elements("steps")];
    return find();
  }

  async function poll(since) {
    const element = await arrived(() => polls.find((one) => Number(one.dataset.since) === since));
    const view = await unpack((element ?? polls[0]).textContent, await labels);
    return element ? view : { ...view, since, steps: [] };
  }

  async function step(i) {
    const place = Math.floor(i / perBlock);
    const views = kept.get(place) ?? unpack((await arrived(() => blocks[place])).textContent, await labels);
    kept.delete(place);
    kept.set(place, views);
    if (kept.size > BLOCKS_KEPT) kept.delete(kept.keys().next().value);
    return { ...(await views)[i % perBlock], labels: await labels };
  }

  const [found] = elements("findings");
  return { poll, step, ...(found && { findings: async () => ({ findings: await inflate(found.textContent) }) }) };
}

async function inflate(text) {
  const stream = new Blob([fromBase85(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const BASE85_VALUES = new Uint8Array(128);
for (let i = 0; i < BASE85.length; i++) BASE85_VALUES[BASE85.charCodeAt(i)] = i;

// Five letters are four bytes, the first the highest; a rest of n letters is n - 1 bytes.
function fromBase85(text) {
  const bytes = new Uint8Array(Math.floor((text.length * 4) / 5));
  const whole = text.length - (text.length % 5);
  const word = (at, letter) => {
    let value = 0;
    for (let j = 0; j < 5; j++) value = value * 85 + letter(at + j);
    return value;
  };
  const read = (at) => BASE85_VALUES[text.charCodeAt(at)];
  let end = 0;
  for (let at = 0; at < whole; at += 5) {
    const value = word(at, read);
    bytes[end++] = value >>> 24;
    bytes[end++] = value >>> 16;
    bytes[end++] = value >>> 8;
    bytes[end++] = value;
  }
  if (whole < text.length) {
    const value = word(whole, (at) => (at < text.length ? read(at) : 84));
    for (let shift = 24; end < bytes.length; shift -= 8) bytes[end++] = value >>> shift;
  }
  return bytes;
}

async function unpack(text, labels) {
  const seen = [];
  const packed = await inflate(text);

  function value(data) {
    if (Array.isArray(data)) return list(data);
    if (data === null || typeof data !== "object") return data;
    if (!Object.hasOwn(data, "")) return object(data);
    const [kind, ...content] = data[""];
    return FORMS[kind](...content);
  }

  function list(data) {
    const values = data.map(value);
    if (values.length >= LONG_LIST) seen.push(values);
    return values;
  }

  function object(named) {
    return labelled(Object.fromEntries(Object.entries(named).map(([name, data]) => [name, value(data)])));
  }

  function rows(count, named) {
    const columns = Object.entries(named).map(([name, data]) => [name, column(data, count)]);
    return Array.from({ length: count }, (_, i) => {
      const row = {};
      for (const [name, values] of columns) row[name] = values[i];
      return labelled(row);
    });
  }

  function column(data, count) {
    return data[""]?.[0] === "all" ? Array(count).fill(data[""][1]) : value(data);
  }

  function pairs([lefts, rights]) {
    const [left, right] = [value(lefts), value(rights)];
    return left.map((one, i) => [one, right[i]]);
  }

  function lists(lengths, flat) {
    const [sizes, values] = [value(lengths), value(flat)];
    let at = 0;
    return sizes.map((size) => values.slice(at, (at += size)));
  }

  function labelled(row) {
    if (row.label === true) row.label = labels[row.id];
    return row;
  }

  function near(number, places, entries) {
    const values = seen[number].slice();
    places.forEach((place, i) => (values[place] = entries[i]));
    return values;
  }

  const FORMS = { rows, pairs, lists, object, near, same: (number) => seen[number] };
  return value(packed);
}
