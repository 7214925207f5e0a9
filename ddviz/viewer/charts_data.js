// What the charts show, added up from the compact rows of all steps (view.py): in one place, for Live, Replay and the
// exported page alike. No DOM here.
//
// Out: charts(rows): [{ name, title, says, kind, bars: [{ label, says, share | parts, steps, refused }] , ...}]
//
//   share   0 to 1, of what was tried; null where nothing was
//   parts   [[kind, value]] stacked
//   steps   places in rows that the bar stands for; `refused` those of them with a refusal, where a press goes first

const BARS_MOST = 100; // of a chart over time
const CALIBRATION_BINS = 10;
const [ENTROPY_WIDTH, ENTROPY_BINS] = [0.5, 10]; // nats; the last bin holds the rest
const RANKS_SHOWN = 12;

function chartsOf(rows) {
  const trials = trialsOf(rows);
  return [lengthChart(rows), depthChart(trials), rankChart(trials), calibrationChart(trials), entropyChart(rows), timeChart(rows)];
}

function trialsOf(rows) {
  return rows.flatMap(({ i, tried }) => (tried ?? []).map(([depth, rank, prob, taken]) => ({ i, depth, rank, prob, taken })));
}

// Accept length over time: means of neighbouring steps where there are more steps than bars.
function lengthChart(rows) {
  const bins = timeBins(rows);
  const lengths = rows.map((row) => row.accept_len).sort((a, b) => a - b);
  const mean = meanOf(lengths);
  const bars = bins.map((of) => {
    const length = meanOf(of.map((row) => row.accept_len));
    const parts = [["accepted", Math.max(0, length - 1)], ["bonus", Math.min(1, length)]];
    return { ...timeBar(of), parts, says: `${stepsSaid(of)}: accept length ${trimmed(length)}` };
  });
  const says = rows.length
    ? `A step adds ${mean.toFixed(2)} tokens on average; half of the steps add ${lengths[lengths.length >> 1]} or more.${meansSaid(bins)}`
    : "";
  return { name: "length", title: "Accept length over time", kind: "time", unit: "tokens", bars, says, line: mean, stack: ["accepted", "bonus"] };
}

function depthChart(trials) {
  // A depth was decided once in a step, however many siblings were tried for it.
  const decisions = new Map();
  for (const { i, depth, taken } of trials) {
    const key = `${i} ${depth}`;
    decisions.set(key, { i, at: depth, taken: (decisions.get(key)?.taken ?? 0) || taken });
  }
  const bars = shareBars([...decisions.values()], (depth) => `depth ${depth}`);
  const [first, last] = [bars[0], bars.findLast((bar) => bar.count >= 5)];
  const says = !first
    ? ""
    : `At depth 1 a child was accepted in ${percent(first.share)} of ${first.count} decisions` +
      (last && last !== first ? `, at depth ${last.label} in ${percent(last.share)} of ${last.count}.` : ".");
  return { name: "depth", title: "Acceptance by depth", kind: "share", axis: "depth", bars, says };
}

function rankChart(trials) {
  const known = trials.filter(({ rank }) => rank !== null && rank < RANKS_SHOWN);
  const bars = shareBars(known.map(({ i, rank, taken }) => ({ i, at: rank, taken })), (rank) => `rank ${rank}`);
  const accepted = known.filter(({ taken }) => taken);
  const first = accepted.filter(({ rank }) => rank === 0).length;
  const says = accepted.length
    ? `Of ${accepted.length} accepted nodes ${percent(first / accepted.length)} were the drafter's first choice.`
    : "";
  return { name: "rank", title: "Acceptance by rank", kind: "share", axis: "rank in the draft", bars, says };
}

function calibrationChart(trials) {
  const known = trials.filter(({ prob }) => prob !== null);
  const bin = (prob) => Math.min(CALIBRATION_BINS - 1, Math.floor(prob * CALIBRATION_BINS));
  const range = (k) => `${(k / CALIBRATION_BINS).toFixed(1)} to ${((k + 1) / CALIBRATION_BINS).toFixed(1)}`;
  const of = known.map(({ i, prob, taken }) => ({ i, at: bin(prob), taken }));
  const bars = shareBars(of, (k) => `draft probability ${range(k)}`, { last: CALIBRATION_BINS - 1, label: (k) => (k / CALIBRATION_BINS).toFixed(1) });
  const [given, share] = [meanOf(known.map(({ prob }) => prob)), meanOf(known.map(({ taken }) => taken))];
  const is = Math.abs(given - share) < 0.03 ? "about right" : given > share ? "too high" : "too low";
  const says = known.length
    ? `The drafter gave the tried nodes ${given.toFixed(2)} on average, and ${percent(share)} of them were accepted: its probabilities are ${is}.`
    : "";
  return { name: "calibration", title: "Draft probability against acceptance", kind: "share", axis: "draft probability", diagonal: true, bars, says };
}

function entropyChart(rows) {
  const decisions = rows.flatMap(({ i, tried, entropy }) => {
    const depths = new Set((tried ?? []).map(([depth]) => depth));
    return (entropy ?? []).flatMap((nats, depth) =>
      nats === null || !depths.has(depth + 1) ? [] : [{ i, nats, taken: depth < entropy.length - 1 ? 1 : 0 }],
    );
  });
  const bin = (nats) => Math.min(ENTROPY_BINS - 1, Math.floor(nats / ENTROPY_WIDTH));
  const range = (k) => (k === ENTROPY_BINS - 1 ? `${k * ENTROPY_WIDTH} or more` : `${k * ENTROPY_WIDTH} to ${(k + 1) * ENTROPY_WIDTH}`);
  const of = decisions.map(({ i, nats, taken }) => ({ i, at: bin(nats), taken }));
  const bars = shareBars(of, (k) => `entropy ${range(k)} nats`, { label: (k) => String(k * ENTROPY_WIDTH) });
  const mean = (wanted) => meanOf(decisions.filter(({ taken }) => taken === wanted).map(({ nats }) => nats));
  const both = [1, 0].every((wanted) => decisions.some(({ taken }) => taken === wanted));
  const says = both
    ? `The target's entropy is ${mean(1).toFixed(2)} nats on average where a child was accepted, ${mean(0).toFixed(2)} where none was.`
    : decisions.length ? `Every one of ${decisions.length} decisions went the same way.` : "";
  return { name: "entropy", title: "Target entropy against acceptance", kind: "share", axis: "entropy, nats", bars, says };
}

function timeChart(rows) {
  const bins = timeBins(rows);
  const totals = Object.fromEntries(TIME_STACK.map((name) => [name, 0]));
  const bars = bins.map((of) => {
    const times = Object.fromEntries(TIME_STACK.map((name) => [name, 0]));
    for (const { stages } of of) {
      for (const [name, ms] of Object.entries(stages)) {
        const stage = name in times ? name : "other";
        times[stage] += ms / of.length;
        totals[stage] += ms;
      }
    }
    const parts = TIME_STACK.map((name) => [name, times[name]]);
    const said = parts.filter(([, ms]) => ms > 0).map(([name, ms]) => `${name} ${milliseconds(ms)}`);
    return { ...timeBar(of), parts, says: `${stepsSaid(of)}: ${said.join(", ")} ms` };
  });
  const whole = TIME_STACK.reduce((sum, name) => sum + totals[name], 0);
  const first = [...TIME_STACK].sort((a, b) => totals[b] - totals[a]).filter((name) => totals[name] > 0);
  const says = whole
    ? `A step takes ${milliseconds(whole / rows.length)} ms on average: ${first.slice(0, 2).map((name) => `${name} ${percent(totals[name] / whole)}`).join(", ")}.${meansSaid(bins)}`
    : "";
  return { name: "times", title: "Stage times", kind: "time", unit: "ms", bars: whole ? bars : [], says, stack: first };
}

// entries [{ i, at, taken }] as a bar for each value of `at`, from the least to `last` or the greatest there is.
function shareBars(entries, saidOf, { last = null, label = String } = {}) {
  if (!entries.length) return [];
  const groups = new Map();
  for (const entry of entries) {
    if (!groups.has(entry.at)) groups.set(entry.at, []);
    groups.get(entry.at).push(entry);
  }
  const keys = [...groups.keys()];
  const least = last === null ? keys.reduce((a, b) => Math.min(a, b)) : 0;
  const count = (last ?? keys.reduce((a, b) => Math.max(a, b))) - least + 1;
  return Array.from({ length: count }, (_, k) => {
    const of = groups.get(least + k) ?? [];
    const taken = of.reduce((sum, entry) => sum + entry.taken, 0);
    const share = of.length ? taken / of.length : null;
    const said = of.length ? `${taken} of ${of.length} accepted, ${percent(share)}` : "none";
    const places = (entries) => [...new Set(entries.map(({ i }) => i))];
    return {
      label: label(least + k),
      says: `${saidOf(least + k)}: ${said}`,
      share,
      count: of.length,
      steps: places(of),
      refused: places(of.filter((entry) => !entry.taken)),
    };
  });
}

function timeBins(rows) {
  const each = Math.ceil(rows.length / BARS_MOST) || 1;
  return Array.from({ length: Math.ceil(rows.length / each) }, (_, k) => rows.slice(k * each, (k + 1) * each));
}

function meansSaid([bin]) {
  return bin?.length > 1 ? ` Each bar is the mean of ${bin.length} steps.` : "";
}

function timeBar(of) {
  return { label: String(of[0].index), steps: of.map(({ i }) => i), refused: [] };
}

function stepsSaid(of) {
  return of.length === 1 ? `step ${of[0].index}` : `steps ${of[0].index} to ${of[of.length - 1].index}`;
}

function meanOf(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}

function percent(share) {
  return `${Math.round(100 * share)}\u00a0%`;
}

function trimmed(value) {
  return Number.isInteger(value) ? String(value) : value.toFixed(2);
}

// Where a press on a bar goes: the next step of it after this one, round again from its first; with refusals among
// them, to one of those.
function nextOfBar({ steps, refused }, now) {
  const places = refused.length ? refused : steps;
  return places.find((i) => i > (now ?? -1)) ?? places[0] ?? null;
}
