// Stage 4 once more: the twin of ddviz/tree/accept.py, float32 as there. tests/learn/test_twins.py holds it equal.

// Sampled: one coin per node against the running sum of its children, then the bonus from the residual.
//
//   tree      { tokens, nextToken, nextSibling } [n]
//   rows      [n][V] target probabilities after each node
//   coins     [n]; finalCoin draws the bonus; most: nodes that a path may hold, the root among them
//
// -> { path, emitted, residual, below, bonus }: path has the root first, emitted the bonus last
function samplePath({ tokens, nextToken, nextSibling }, rows, coins, finalCoin, most, single = 1, acc = 1) {
  const path = [0];
  let rejected = [];
  while (path.length < most) {
    const node = path[path.length - 1];
    const siblings = childrenOf(node, nextToken, nextSibling);
    const exam = examineChildren(siblings.map((child) => rows[node][tokens[child]]), coins[node], single, acc);
    if (exam.taken < 0) {
      rejected = siblings.map((child) => tokens[child]);
      break;
    }
    path.push(siblings[exam.taken]);
  }
  const last = path[path.length - 1];
  const drawn = drawBonus(rows[last], rejected, finalCoin);
  return { path, emitted: [...path.slice(1).map((node) => tokens[node]), drawn.token], ...drawn };
}

// Greedy: follow the child that equals the target's argmax until there is none; that argmax is the bonus.
function followArgmax({ tokens, nextToken, nextSibling }, argmax, most) {
  const path = [0];
  while (path.length < most) {
    const node = path[path.length - 1];
    const child = childrenOf(node, nextToken, nextSibling).find((one) => tokens[one] === argmax[node]);
    if (child === undefined) break;
    path.push(child);
  }
  return { path, emitted: path.map((node) => argmax[node]) };
}

// The children's probabilities in link order against one coin: the place of the one taken, -1 = none; running sums.
function examineChildren(probs, coin, single = 1, acc = 1) {
  const bar = Math.fround(Math.max(acc, 1e-9));
  const sums = [];
  let [running, taken] = [0, -1];
  probs.forEach((prob, k) => {
    running = Math.fround(running + Math.fround(prob));
    sums.push(running);
    const isTaken = Math.fround(coin) <= Math.fround(running / bar) || prob >= Math.fround(single);
    if (taken < 0 && isTaken) taken = k;
  });
  return { taken, sums };
}

// From a row without its rejected tokens: the first token whose running mass exceeds coin × total.
function drawBonus(row, rejected, coin) {
  const residual = row.map((prob, token) => (rejected.includes(token) ? 0 : Math.fround(prob)));
  const total = residual.reduce((sum, prob) => sum + prob, 0);
  const wanted = Math.fround(coin) * total;
  let below = 0;
  for (let token = 0; token < residual.length; token++) {
    if (below + residual[token] > wanted) return { token, residual: total, below };
    below += residual[token];
  }
  return { token: residual.length - 1, residual: total, below: below - residual[residual.length - 1] };
}

function childrenOf(node, nextToken, nextSibling) {
  const children = [];
  for (let child = nextToken[node]; child !== -1; child = nextSibling[child]) children.push(child);
  return children;
}

// Coins for draws that come out the same every time: mulberry32, 24 bits, float32 in [0, 1).
function newCoins(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 8) / 2 ** 24;
  };
}
