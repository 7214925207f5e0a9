r"""Stage 3 of 5, draft -> build -> COMPILE -> verify -> commit: the retrieve encoding of a tree.

In:  parents [n] of a DraftTree, nodes in best-first order.
Out: Retrieve: first-child / next-sibling links as the tree kernels of EAGLE, DFlash and NGRAM read them.
Not here: the attention mask and positions (mask.py).

        0                 node          0  1  2  3  4
       / \                next_token    1  3 -1 -1 -1     first child, -1 = leaf
      1   2               next_sibling -1  2 -1  4 -1     next child of the same parent, -1 = last
     / \                  index (row b) b*T + node         flat
    3   4
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Retrieve:
    """The three arrays of one request, T wide. T > n leaves pad nodes that no link points to."""

    index: NDArray[np.int64]  # [T] flat id, row*T + node
    next_token: NDArray[np.int64]  # [T] local id of the first child, -1 = none
    next_sibling: NDArray[np.int64]  # [T] local id of the next sibling, -1 = none


def compile_ddtree_retrieve(parents: NDArray[np.int32], row: int = 0, width: int | None = None) -> Retrieve:
    """Encode a tree for the kernels.

    parents  [n], parents[0] = -1, parents[i] < i; siblings stand in descending score, so linking each node
             to the next larger index with the same parent keeps that order
    row      batch row b of the request
    width    T >= n, default n

    Raises ValueError where a parent does not come before its child, or width < n.
    """
    n = len(parents)
    width = n if width is None else width
    if width < n:
        raise ValueError(f"{width = } < {n} nodes")
    if n == 0 or parents[0] != -1:
        raise ValueError("parents[0] must be -1 (the root)")
    next_token = np.full(width, -1, np.int64)
    next_sibling = np.full(width, -1, np.int64)
    last_child = [-1] * n
    for node in range(1, n):
        parent = int(parents[node])
        if not 0 <= parent < node:
            raise ValueError(f"parents[{node}] = {parent}, must be in [0, {node})")
        if last_child[parent] == -1:
            next_token[parent] = node
        else:
            next_sibling[last_child[parent]] = node
        last_child[parent] = node
    return Retrieve(row * width + np.arange(width, dtype=np.int64), next_token, next_sibling)


def depths_of(parents: Sequence[int]) -> list[int] | None:
    """Depth [n] of every node, the root at 0; None where a parent does not come before its child."""
    depths = [0]
    for node, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < node:
            return None
        depths.append(depths[parent] + 1)
    return depths


def traverse(
    next_token: NDArray[np.int64] | list[int], next_sibling: NDArray[np.int64] | list[int]
) -> list[tuple[int, int]]:
    """Walk the links from the root: [(node, parent), ...], depth first, the root not listed.

    Raises ValueError at a link out of range or a node met twice, so it ends on any input.
    """
    width = len(next_token)
    first, following = (
        links if isinstance(links, list) else links.tolist() for links in (next_token, next_sibling)
    )
    seen = {0}
    order: list[tuple[int, int]] = []
    stack = [(first[0], 0)] if width else []
    while stack:
        node, parent = stack.pop()
        if node == -1:
            continue
        if not 0 <= node < width:
            raise ValueError(f"a link below node {parent} points to {node}, must be -1 or in [0, {width})")
        if node in seen:
            raise ValueError(f"the links reach node {node} twice")
        seen.add(node)
        order.append((node, parent))
        stack.append((following[node], parent))
        stack.append((first[node], node))
    return order


def parents_from_links(next_token: NDArray[np.int64], next_sibling: NDArray[np.int64]) -> NDArray[np.int32]:
    """Parents [T] that the links encode; -1 for the root and for pad nodes. Errors as `traverse`."""
    parents = np.full(len(next_token), -1, np.int32)
    for node, parent in traverse(next_token, next_sibling):
        parents[node] = parent
    return parents


def children_of(node: int, next_token: NDArray[np.int64], next_sibling: NDArray[np.int64]) -> list[int]:
    """The children of one node in the order the kernel examines them. ValueError on a sibling cycle."""
    children: list[int] = []
    child = int(next_token[node])
    while child != -1:
        if len(children) == len(next_token):
            raise ValueError(f"the siblings below node {node} form a cycle")
        children.append(child)
        child = int(next_sibling[child])
    return children
