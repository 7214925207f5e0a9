"""A tree that can be drawn, whatever the trace says.

In:  Step as recorded, perhaps damaged: lists too short, parents that do not exist, links that run in circles.
Out: Shape: every node once below the root, children in examination order, the accepted path; and faults.
Not here: numbers of nodes (step.py), a full list of defects (check/doctor.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddviz.trace.schema import Step


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree that can be drawn, whatever the trace says: every node has a parent that leads to the root."""

    parents: list[int]  # [n] parents[0] = -1
    depths: list[int]  # [n]
    children: list[list[int]]  # [n] in the order the kernel examines them
    next_token: NDArray[
        np.int64
    ]  # [n] first child, -1 = none; the recorded links, those out of range dropped
    next_sibling: NDArray[np.int64]  # [n]
    path: list[int]  # accepted path, root first


def shape_of(step: Step, faults: list[str], node_faults: list[list[str]]) -> Shape:
    """The tree as it can be drawn; what had to be bent for that is added to the faults."""
    n = len(step.tree.tokens)
    parents, depths = _parents(step.tree.parents, n, node_faults)
    next_token, next_sibling = _links(step, parents, n)
    children = _children(parents, next_token, next_sibling, node_faults)
    return Shape(parents, depths, children, next_token, next_sibling, _path(step, n, faults))


def at(values: Sequence[Any] | None, i: int) -> Any:
    """values[i], or None where there is no such entry (a negative i is none)."""
    return values[i] if values is not None and 0 <= i < len(values) else None


def finite(value: float | None) -> float | None:
    """JSON has no infinities: they read as absent."""
    return value if value is not None and math.isfinite(value) else None


def _parents(recorded: list[int], n: int, node_faults: list[list[str]]) -> tuple[list[int], list[int]]:
    """Parents and depths; a node whose parents do not lead to the root hangs below the root."""
    parents, depths = [-1] + [0] * (n - 1), [0] * n
    known = {0}
    for node in range(1, n):
        chain: dict[int, None] = {}  # in order
        at_node = node
        while at_node not in known and at_node not in chain:
            chain[at_node] = None
            parent = at(recorded, at_node)
            if parent is None or not 0 <= parent < n:
                node_faults[at_node].append(f"its parent is {parent}, which is no node; drawn below the root")
                parent = 0
            parents[at_node] = at_node = parent
        if at_node not in known:
            last = next(reversed(chain))
            node_faults[last].append(
                f"its parents run in a circle by node {parents[last]}; drawn below the root"
            )
            parents[last] = at_node = 0
        for member in reversed(chain):
            depths[member] = depths[parents[member]] + 1
        known.update(chain)
    return parents[:n], depths


def _links(step: Step, parents: list[int], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First-child and next-sibling links as recorded, or as the parents imply where none were recorded."""
    next_token, next_sibling = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    if step.retrieve is not None:
        for links, recorded in (
            (next_token, step.retrieve.next_token),
            (next_sibling, step.retrieve.next_sibling),
        ):
            for node, link in enumerate(recorded[:n]):
                links[node] = link if 0 <= link < n else -1
        return next_token, next_sibling
    last: dict[int, int] = {}
    for node in range(1, n):
        parent = parents[node]
        if parent in last:
            next_sibling[last[parent]] = node
        else:
            next_token[parent] = node
        last[parent] = node
    return next_token, next_sibling


def _children(
    parents: list[int],
    next_token: NDArray[np.int64],
    next_sibling: NDArray[np.int64],
    node_faults: list[list[str]],
) -> list[list[int]]:
    """Children of every node in link order; those that the links miss come after, by index."""
    n = len(parents)
    linked_below: dict[int, int] = {}
    children: list[list[int]] = [[] for _ in range(n)]
    for parent in range(n):
        child = int(next_token[parent])
        while 0 < child < n and child not in linked_below:
            linked_below[child] = parent
            if parents[child] == parent:
                children[parent].append(child)
            child = int(next_sibling[child])
    for node in range(1, n):
        if node not in linked_below:
            node_faults[node].append("no retrieve link leads to it")
        elif linked_below[node] != parents[node]:
            node_faults[node].append(f"the retrieve links place it below node {linked_below[node]}")
        if linked_below.get(node) != parents[node]:
            children[parents[node]].append(node)
    return children


def _path(step: Step, n: int, faults: list[str]) -> list[int]:
    """The accepted path as node numbers: flat -> local by subtracting row*T."""
    path: list[int] = []
    seen: set[int] = set()
    root = step.flat_root
    for flat in step.accept.index:
        node = flat - root
        if not 0 <= node < n:
            faults.append(f"the accepted path holds flat index {flat}, which is no node of this request")
        elif node in seen:
            faults.append(f"the accepted path visits node {node} twice")
        else:
            path.append(node)
            seen.add(node)
    if len(step.accept.index) != step.accept.num_accepted + 1:
        faults.append(
            f"the accepted path holds {len(step.accept.index)} nodes, not 1 + {step.accept.num_accepted}"
        )
    return path
