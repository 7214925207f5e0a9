"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: which path the target accepts.

In:  candidates, the retrieve arrays, and per node the target's argmax (greedy) or probabilities and coins
     (sampled).
Out: TreeAcceptance, the same contract for both, in the layout of the sgl-kernel tree kernels.
Not here: committing the path (the engine), the probabilities themselves (target_probs.py).

Both functions are twins of kernels of sglang-kernel 0.4.5, so that a kernel's output can be compared entry by
entry: `sample_tree_paths` of tree_speculative_sampling_target_only, `follow_verified_tree` of
verify_tree_greedy.

One coin per node decides among that node's children: it is compared with the running sum of their target
probabilities, which is the inverse CDF of the target restricted to the candidates. If none is taken, the
bonus is drawn from what is left of the row. At thresholds 1.0 the emitted tokens are therefore distributed as
target_probs, whatever the tree holds; no draft probability enters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GREEDY_TEMPERATURE = 1e-6  # below this the request is greedy
MIN_THRESHOLD_ACC = 1e-9  # the kernel's floor

ACCEPTED, REJECTED, UNREACHED = "accepted", "rejected", "unreached"


class TreeAcceptance(NamedTuple):
    """What the kernels write for a batch, S = largest path length with the root."""

    predicts: NDArray[np.int32]  # [bs*T] predicts[flat(node)] = token emitted after node; unvisited stay 0
    accept_index: NDArray[np.int32]  # [bs, S] flat ids of the accepted path, root first, tail -1
    num_accepted: NDArray[np.int32]  # [bs] accepted nodes, root and bonus not counted
    residual_sum: NDArray[np.float32]  # [bs] mass the bonus was drawn from; NaN for greedy
    bonus_cdf: NDArray[np.float32]  # [bs] residual mass of the tokens before the bonus; NaN for greedy
    bonus_prob: NDArray[np.float32]  # [bs] residual mass of the bonus itself; NaN for greedy


class AcceptedPath(NamedTuple):
    """One request's outcome: what the commit needs to know, whichever kernel decided it."""

    path: NDArray[np.int64]  # [num_accepted + 1] local node indices, path[0] = 0
    emitted: NDArray[np.int64]  # [num_accepted + 1] tokens of path[1:], then the bonus


def is_greedy(temperature: float, top_k: int) -> bool:
    """Whether a request takes the argmax: temperature < 1e-6, or top_k = 1."""
    return temperature < GREEDY_TEMPERATURE or top_k == 1


def follow_verified_tree(
    candidates: NDArray[np.int64],
    retrieve_index: NDArray[np.int64],
    next_token: NDArray[np.int64],
    next_sibling: NDArray[np.int64],
    target_predict: NDArray[np.int64],
    max_path_len: int,
) -> TreeAcceptance:
    """Greedy: follow the child that equals the target's argmax until there is none; that argmax is the bonus.

    candidates, retrieve_index, next_token, next_sibling, target_predict  [bs, T] int64
    max_path_len  S >= 1, root included
    """
    bs, width = candidates.shape
    out = _empty_acceptance(bs, width, max_path_len)
    for row in range(bs):
        node, count = 0, 0
        out.accept_index[row, 0] = retrieve_index[row, 0]
        while True:
            wanted = target_predict[row, node]
            out.predicts[retrieve_index[row, node]] = wanted
            if count == max_path_len - 1:
                break
            child = next_token[row, node]
            while child != -1 and candidates[row, child] != wanted:
                child = next_sibling[row, child]
            if child == -1:
                break
            node, count = child, count + 1
            out.accept_index[row, count] = retrieve_index[row, node]
        out.num_accepted[row] = count
    return out


def sample_tree_paths(
    candidates: NDArray[np.int64],
    retrieve_index: NDArray[np.int64],
    next_token: NDArray[np.int64],
    next_sibling: NDArray[np.int64],
    target_probs: NDArray[np.float32],
    coins: NDArray[np.float32],
    final_coins: NDArray[np.float32],
    max_path_len: int,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> TreeAcceptance:
    """Sampled: one coin per node against the running sum of its children, then the bonus from the residual.

    candidates, retrieve_index, next_token, next_sibling  [bs, T] int64
    target_probs   [bs, T, V] float32, row t = distribution after the path to node t
    coins          [bs, T] float32 in [0, 1), coin t decides among the children of node t
    final_coins    [bs] float32 in [0, 1), draws the bonus
    max_path_len   S >= 1, root included: at the last depth no child is examined
    threshold_single, threshold_acc  1.0 = exact; lower values accept more and bias the output

    Kept as the kernel has it, defects too: a coin of 0 accepts a first child of probability 0 (`<=`), and a
    residual without mass yields the last token of the vocabulary.
    Source: sglang-kernel 0.4.5, csrc/speculative/speculative_sampling.cuh.
    """
    bs, width = candidates.shape
    out = _empty_acceptance(bs, width, max_path_len)
    threshold_acc = max(threshold_acc, MIN_THRESHOLD_ACC)
    for row in range(bs):
        node, count = 0, 0
        rejected: list[np.int64] = []
        out.accept_index[row, 0] = retrieve_index[row, 0]
        while count < max_path_len - 1:
            child, rejected = _examine_children(
                candidates[row],
                next_token[row, node],
                next_sibling[row],
                target_probs[row, node],
                coins[row, node],
                threshold_single,
                threshold_acc,
            )
            if child == -1:
                break
            rejected = []
            out.predicts[retrieve_index[row, node]] = candidates[row, child]
            node, count = child, count + 1
            out.accept_index[row, count] = retrieve_index[row, node]
        out.num_accepted[row] = count
        bonus = _draw_bonus(target_probs[row, node], rejected, final_coins[row])
        out.predicts[retrieve_index[row, node]] = bonus.token
        out.residual_sum[row], out.bonus_cdf[row], out.bonus_prob[row] = bonus[1:]
    return out


def accepted_paths(acceptance: TreeAcceptance, width: int) -> list[AcceptedPath]:
    """Per request the local path and the emitted tokens; flat -> local by subtracting row*T (T = width)."""
    paths = []
    for row, count in enumerate(acceptance.num_accepted):
        flat = acceptance.accept_index[row, : count + 1].astype(np.int64)
        paths.append(AcceptedPath(flat - row * width, acceptance.predicts[flat].astype(np.int64)))
    return paths


def node_statuses(
    n: int, path: list[int], next_token: NDArray[np.int64], next_sibling: NDArray[np.int64]
) -> list[str]:
    """Status of each of n nodes: accepted, rejected (examined and refused) or unreached (never examined).

    Works for both kernels: below every node of the path they examine the children in link order and stop at
    the first one taken. A link that leads nowhere, or round in a circle, ends the walk (traces may be
    damaged).
    """
    statuses = [UNREACHED] * n
    on_path = set(path)
    for node in path:
        child = int(next_token[node]) if 0 <= node < len(next_token) else -1
        for _ in range(n):
            if not 0 <= child < n or child in on_path:
                break
            statuses[child] = REJECTED
            child = int(next_sibling[child]) if child < len(next_sibling) else -1
    for node in on_path:
        if 0 <= node < n:
            statuses[node] = ACCEPTED
    return statuses


class _Bonus(NamedTuple):
    token: int
    residual_sum: np.float32
    cdf_below: np.float32
    prob: np.float32


def _examine_children(
    candidates: NDArray[np.int64],
    child: int,
    next_sibling: NDArray[np.int64],
    probs: NDArray[np.float32],
    coin: np.float32,
    threshold_single: float,
    threshold_acc: float,
) -> tuple[int, list[np.int64]]:
    """The accepted child (-1 = none) and the tokens that were refused before it."""
    rejected: list[np.int64] = []
    running = np.float32(0)
    while child != -1:
        token = candidates[child]
        running += probs[token]
        if coin <= running / np.float32(threshold_acc) or probs[token] >= np.float32(threshold_single):
            return child, rejected
        rejected.append(token)
        child = next_sibling[child]
    return -1, rejected


def _draw_bonus(probs: NDArray[np.float32], rejected: list[np.int64], coin: np.float32) -> _Bonus:
    """Draw from the row without its rejected tokens: the first token whose running mass exceeds coin * total.

    NOTE: summed in float64 where the kernel scans in float32: the vocabulary's tail is not lost to rounding,
    and the two agree unless the coin lies within about 1e-6 of a boundary.
    """
    residual = probs.copy()
    residual[rejected] = 0
    cdf = np.cumsum(residual, dtype=np.float64)
    total = cdf[-1]
    above = cdf > float(coin) * total
    token = int(above.argmax()) if above.any() else len(residual) - 1
    below = cdf[token - 1] if token else 0.0
    return _Bonus(token, np.float32(total), np.float32(below), residual[token])


def _empty_acceptance(bs: int, width: int, max_path_len: int) -> TreeAcceptance:
    if max_path_len < 1:
        raise ValueError(f"{max_path_len = }, must be >= 1 (it counts the root)")
    nan = np.full(bs, np.nan, np.float32)
    return TreeAcceptance(
        predicts=np.zeros(bs * width, np.int32),
        accept_index=np.full((bs, max_path_len), -1, np.int32),
        num_accepted=np.zeros(bs, np.int32),
        residual_sum=nan,
        bonus_cdf=nan.copy(),
        bonus_prob=nan.copy(),
    )
