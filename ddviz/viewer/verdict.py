"""Why a node was accepted, rejected or never examined: one plain sentence each.

In:  Step, its children in examination order, statuses.
Out: sentences, and for a sampled step the comparison behind them (coin, running sum, threshold).
Not here: finding defects (check/doctor.py). Still, where the recorded numbers contradict the decision, the
sentence says so instead of explaining it away.

    children of p, in link order      a      b      c         coin of p = 0.55
    their target probabilities       0.30   0.20   0.10
    running sum                      0.30   0.50   0.60
                                     >      >      <= coin taken: c is accepted, a and b are rejected
"""

from typing import NamedTuple

import numpy as np

from ddviz.trace import Trace
from ddviz.trace.schema import Step
from ddviz.tree.accept import ACCEPTED, MIN_THRESHOLD_ACC, REJECTED


class Examined(NamedTuple):
    """The comparison a sampled step made for one child, in float32 as the kernel did."""

    coin: float
    running: float  # sum of the target probabilities of this child and the siblings before it
    threshold: float  # running / threshold_acc: accepted where coin <= threshold
    prob: float

    @property
    def by_coin(self) -> bool:
        with np.errstate(over="ignore"):  # a damaged trace
            return bool(np.float32(self.coin) <= np.float32(self.threshold))

    def by_single(self, threshold_single: float) -> bool:
        with np.errstate(over="ignore"):
            return bool(np.float32(self.prob) >= np.float32(threshold_single))


def running_sums(step: Step, children: list[list[int]], threshold_acc: float) -> dict[int, Examined]:
    """By node: what it was compared with; only where coins and probabilities are all there."""
    if step.sampling is None or step.target is None or step.target.filtered is None:
        return {}
    probs, coins = step.target.filtered.node_probs, step.sampling.coins
    acc = np.float32(max(threshold_acc, MIN_THRESHOLD_ACC))
    examined = {}
    for parent, siblings in enumerate(children):
        running = np.float32(0)
        for node in siblings:
            prob = probs[node] if node < len(probs) else None
            if prob is None or parent >= len(coins) or coins[parent] is None:
                break
            with np.errstate(over="ignore"):
                running += np.float32(prob)
                examined[node] = Examined(coins[parent], float(running), float(running / acc), prob)
    return examined


def node_reasons(
    step: Step,
    children: list[list[int]],
    parents: list[int],
    path: list[int],
    statuses: list[str],
    examined: dict[int, Examined],
    trace: Trace,
) -> list[str | None]:
    """One sentence per node; None where the trace holds too little to tell."""
    if not parents:
        return []
    reasons: list[str | None] = ["the last committed token; its KV is not in the cache yet"]
    on_path = set(path)
    taken = {parent: next((child for child in children[parent] if child in on_path), None) for parent in path}
    for node in range(1, len(parents)):
        parent = parents[node]
        if statuses[node] not in (ACCEPTED, REJECTED):
            reasons.append(_unreached(node, parent, taken))
        elif step.accept.kernel == "greedy":
            reasons.append(_greedy(step, trace, node, parent, statuses[node]))
        else:
            reasons.append(_sampled(examined.get(node), statuses[node], trace.header.threshold_single))
    return reasons


def bonus_reason(step: Step, children: list[list[int]], last: int) -> str:
    """How the bonus came about."""
    has_children = last < len(children) and bool(children[last])
    if step.accept.kernel == "greedy":
        tail = ", and none of its children carries it" if has_children else ""
        return f"the target's argmax after node {last}{tail}"
    where = "what the rejected children left" if has_children else "the target's distribution"
    sampling = step.sampling
    mass = (
        f" (mass {number(sampling.residual_sum)})" if sampling and sampling.residual_sum is not None else ""
    )
    coin = f" with the final coin {number(sampling.final_coin)}" if sampling else ""
    return f"drawn from {where} after node {last}{mass}{coin}"


def _unreached(node: int, parent: int, taken: dict[int, int | None]) -> str:
    """taken  the child that was accepted, for each node of the accepted path"""
    if parent not in taken:
        return f"never examined: its parent, node {parent}, was not accepted"
    if taken[parent] not in (None, node):
        return f"never examined: node {taken[parent]}, an earlier sibling, was accepted first"
    return f"never examined, though its parent, node {parent}, was accepted"


def _greedy(step: Step, trace: Trace, node: int, parent: int, status: str) -> str | None:
    target = step.target
    if target is None or parent >= len(target.argmax):
        return None
    wanted, token = target.argmax[parent], step.tree.tokens[node]
    margin = target.margin[parent] if parent < len(target.margin) else None
    by = "" if margin is None else f", margin {number(margin)}"
    label = trace.tokens.label(wanted)
    if status == ACCEPTED:
        if wanted == token:
            return f"equals the target's argmax after node {parent}{by}"
        return (
            f"accepted, yet the target's argmax after node {parent} is {label} (id {wanted}): a contradiction"
        )
    if wanted != token:
        return f"the target's argmax after node {parent} is {label} (id {wanted}){by}"
    return f"rejected, yet it equals the target's argmax after node {parent}: a contradiction"


def _sampled(examined: Examined | None, status: str, threshold_single: float) -> str | None:
    if examined is None:
        return None
    coin, limit = _told_apart(examined.coin, examined.threshold)
    sum_of = "the running sum of the siblings' target probabilities"
    if examined.threshold != examined.running:
        sum_of = f"the running sum {number(examined.running)} / threshold_acc"
    takes, single = examined.by_coin, examined.by_single(threshold_single)
    if status == ACCEPTED and takes:
        return f"coin {coin} ≤ {limit}, {sum_of}"
    if status == ACCEPTED and single:
        return f"its target probability {number(examined.prob)} ≥ threshold_single {threshold_single:g}"
    if status == REJECTED and not takes and not single:
        return f"coin {coin} > {limit}, {sum_of}"
    if status == ACCEPTED:
        return f"accepted, yet coin {coin} > {limit}, {sum_of}: a contradiction"
    return f"rejected, yet coin {coin} ≤ {limit}, {sum_of}: a contradiction"


def _told_apart(a: float, b: float) -> tuple[str, str]:
    """Both numbers, with as many digits as it takes to see which is larger (9 tell any two float32 apart)."""
    for digits in (3, 4, 6, 9):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
