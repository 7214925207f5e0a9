r"""Stage 3 of 5, draft -> build -> COMPILE -> verify -> commit: who sees whom, and where each node stands.

In:  parents, depths of a DraftTree, the committed length.
Out: the T x T tail of the attention mask, and RoPE positions.
Not here: the committed prefix, which every node sees and no array holds.

           columns  0 1 2 3 4
        0     row 0 1 . . . .       a node sees itself and its ancestors:
       / \        1 1 1 . . .       row(i) = row(parent) + itself.
      1   2       2 1 . 1 . .       position = committed length + depth: siblings share one,
     / \          3 1 1 . 1 .       while their KV slots differ.
    3   4         4 1 1 . . 1
"""

import numpy as np
from numpy.typing import NDArray


def tree_mask(parents: NDArray[np.int32], width: int | None = None) -> NDArray[np.bool_]:
    """Ancestor mask [T, T], row = query node, column = key node; pad nodes (>= n) see themselves only."""
    n = len(parents)
    width = n if width is None else width
    mask = np.eye(width, dtype=np.bool_)
    for node in range(1, n):
        mask[node] |= mask[parents[node]]
    return mask


def node_positions(prefix_len: int, depths: NDArray[np.int32], width: int | None = None) -> NDArray[np.int64]:
    """RoPE positions [T] = prefix_len + depth; pad nodes stand at the root's position."""
    n = len(depths)
    positions = np.full(n if width is None else width, prefix_len, np.int64)
    positions[:n] += depths
    return positions


def pack_mask(mask: NDArray[np.bool_]) -> bytes:
    """Bits of a [T, T] mask, row by row, each row padded to whole bytes, lowest bit first."""
    return np.packbits(mask, axis=1, bitorder="little").tobytes()


def unpack_mask(packed: bytes, width: int) -> NDArray[np.bool_]:
    """Undo `pack_mask`. Raises ValueError where the bytes are not those of a width x width mask."""
    row_bytes = -(-width // 8)
    if len(packed) != width * row_bytes:
        raise ValueError(f"a {width} x {width} mask takes {width * row_bytes} bytes, got {len(packed)}")
    rows = np.frombuffer(packed, np.uint8).reshape(width, row_bytes)
    return np.unpackbits(rows, axis=1, count=width, bitorder="little").astype(np.bool_)
