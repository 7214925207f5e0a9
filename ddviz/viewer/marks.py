"""What is worth stopping at: steps whose likeliest candidate was refused, and steps decided by a hair.

In:  Step as recorded, perhaps damaged.
Out: top1_rejected, near_tie: what the viewer's jumps go by, one bool each, cheap enough for every step.
Not here: why a node was refused (verdict.py), the whole tree (shape.py).

    coin of the parent   0.505
    running sums of its children, in link order   0.30   0.50   0.90      0.505 - 0.50 < 0.01: a near-tie
"""

from collections.abc import Iterator

from ddviz.trace.schema import Step
from ddviz.viewer.shape import at

NEAR_MARGIN = 0.1  # best raw logit - second, where a greedy step takes the argmax
NEAR_COIN = 0.01  # distance of a coin to a running sum that it was compared with


def top1_rejected(step: Step) -> bool:
    """Whether the drafter's likeliest token was examined and refused somewhere along the accepted path."""
    path = accepted_path(step)
    return any(child not in path and at(step.tree.ranks, child) == 0 for child, _ in examined(step, path))


def near_tie(step: Step) -> bool:
    """Whether a decision along the accepted path could easily have gone the other way."""
    path, target = accepted_path(step), step.target
    if target is None:
        return False
    if step.accept.kernel == "greedy" or step.sampling is None or target.filtered is None:
        lead = target.margin if step.accept.kernel == "greedy" else target.raw.margin
        margins = [at(lead, node) for node in path]
        return any(margin is not None and margin < NEAR_MARGIN for margin in margins)
    sums: dict[int, float] = {}
    for child, parent in examined(step, path):
        prob, coin = at(target.filtered.node_probs, child), at(step.sampling.coins, parent)
        if prob is None or coin is None:
            continue
        sums[parent] = sums.get(parent, 0.0) + prob
        if abs(coin - sums[parent]) < NEAR_COIN:
            return True
    return False


def accepted_path(step: Step) -> dict[int, None]:
    """The accepted path as node numbers, in its order."""
    n = len(step.tree.tokens)
    return {node: None for node in step.local_path if 0 <= node < n}


def examined(step: Step, path: dict[int, None]) -> Iterator[tuple[int, int]]:
    """(child, parent) of every comparison: children in link order, up to the one that was taken."""
    n = len(step.tree.tokens)
    for parent in path:
        for child in _children(step, parent, n):
            yield child, parent
            if child in path:
                break


def _children(step: Step, parent: int, n: int) -> Iterator[int]:
    if step.retrieve is None:
        yield from (node for node in range(parent + 1, n) if at(step.tree.parents, node) == parent)
        return
    child = at(step.retrieve.next_token, parent)
    for _ in range(n):
        if child is None or not 0 < child < n:
            return
        yield child
        child = at(step.retrieve.next_sibling, child)
