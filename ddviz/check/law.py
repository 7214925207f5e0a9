"""The exact law of what one step emits, by enumeration: the target's, and that of a biased acceptance.

In:  a tree, its children in link order, a target row for each node.
Out: {emitted tokens: probability}, summing to 1.
Not here: any acceptance code (tree/accept.py): nothing of it is used, so that it can be held against this.

At thresholds 1.0 the emitted tokens are the target's own walk through the tree: a token that is a child leads
on, any other is the bonus and ends the step.

    root  p(A) = .6  p(B) = .3  p(C) = .1          A is a child, C and B are not
    A     p(A) = .5  p(B) = .5                     no children
    law   (A, A) .3   (A, B) .3   (B,) .3   (C,) .1
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Law = dict[tuple[int, ...], float]
Children = dict[int, list[int]]  # of each node, in link order


def children_of(parents: NDArray[np.int32]) -> Children:
    """By index, which is the order that `compile_ddtree_retrieve` links in."""
    children: Children = {node: [] for node in range(len(parents))}
    for node, parent in enumerate(parents[1:], start=1):
        children[int(parent)].append(node)
    return children


def exact_law(
    tokens: NDArray[np.int64], children: Children, probs: NDArray[np.floating], longest: int
) -> Law:
    """Of a step that samples from its target.

    tokens [n], probs [n, V]; longest: nodes of a path at most, the root counted
    """
    law: Law = {}
    for said, node, mass, depth in _walk(tokens, children, probs, longest, threshold_acc=1.0):
        taken = {int(tokens[child]) for child in children[node]} if depth < longest - 1 else set()
        for token in np.flatnonzero(probs[node]):
            if int(token) not in taken:
                law[(*said, int(token))] = mass * float(probs[node][token])
    return law


def biased_law(
    tokens: NDArray[np.int64],
    children: Children,
    probs: NDArray[np.floating],
    longest: int,
    threshold_acc: float,
) -> Law:
    """Of a step whose coins are compared with running mass / threshold_acc: too much is accepted."""
    law: Law = {}
    for said, node, mass, depth in _walk(tokens, children, probs, longest, threshold_acc):
        below = children[node] if depth < longest - 1 else []
        left = np.array(probs[node], np.float64)
        left[[int(tokens[child]) for child in below]] = 0
        refused = mass * (1 - sum(_chances(tokens, below, probs[node], threshold_acc)))
        if refused <= 1e-15 or not left.any():
            continue
        for token in np.flatnonzero(left):
            law[(*said, int(token))] = refused * float(left[token] / left.sum())
    return law


def _walk(
    tokens: NDArray[np.int64],
    children: Children,
    probs: NDArray[np.floating],
    longest: int,
    threshold_acc: float,
) -> Iterator[tuple[tuple[int, ...], int, float, int]]:
    """Each node: what is said on the way to it, itself, the odds that it is reached, its depth."""
    waiting: list[tuple[tuple[int, ...], int, float, int]] = [((), 0, 1.0, 0)]
    while waiting:
        said, node, mass, depth = waiting.pop()
        yield said, node, mass, depth
        if depth < longest - 1:
            chances = _chances(tokens, children[node], probs[node], threshold_acc)
            for child, chance in zip(children[node], chances, strict=True):
                waiting.append(((*said, int(tokens[child])), child, mass * chance, depth + 1))


def _chances(
    tokens: NDArray[np.int64], below: list[int], row: NDArray[np.floating], threshold_acc: float
) -> list[float]:
    """Of each child to be the accepted one."""
    running = np.cumsum([float(row[tokens[child]]) for child in below]) / threshold_acc
    reached = np.minimum(1.0, np.concatenate([[0.0], running]))
    return [float(chance) for chance in np.diff(reached)]
