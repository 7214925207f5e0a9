"""What the stages hand on, for a batch of requests: the trees, the paths accepted in them, what is emitted.

Not here: how they come about (tree_kernels.py, acceptance.py), what becomes of them (commit.py).
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """The trees of one step, T wide; nodes from `counts[b]` on are pads that nothing links to."""

    tokens: torch.Tensor  # [bs, T] int64, column 0 = root
    parents: torch.Tensor  # [bs, T] int32, -1 for the root and for pads
    depths: torch.Tensor  # [bs, T] int32, 0 for the root and for pads
    ranks: torch.Tensor  # [bs, T] int32
    scores: torch.Tensor  # [bs, T] float32
    counts: torch.Tensor  # [bs] int32, nodes with root
    retrieve_index: torch.Tensor  # [bs, T] int64, flat: row*T + node
    next_token: torch.Tensor  # [bs, T] int64, local, -1 = none
    next_sibling: torch.Tensor  # [bs, T] int64, local, -1 = none
    positions: torch.Tensor  # [bs, T] int64, seq_len + depth
    slots: torch.Tensor  # [bs, T] int64, KV slot of node i: the request's row at seq_len + i

    @classmethod
    def empty(cls, bs: int, width: int, device: torch.device | str) -> "TreeBatch":
        def ints(dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((bs, width), dtype=dtype, device=device)

        return cls(
            tokens=ints(torch.int64),
            parents=ints(torch.int32),
            depths=ints(torch.int32),
            ranks=ints(torch.int32),
            scores=ints(torch.float32),
            counts=torch.empty(bs, dtype=torch.int32, device=device),
            retrieve_index=ints(torch.int64),
            next_token=ints(torch.int64),
            next_sibling=ints(torch.int64),
            positions=ints(torch.int64),
            slots=ints(torch.int64),
        )

    @property
    def width(self) -> int:
        """T, the nodes that the target verifies a request."""
        return self.tokens.shape[1]

    def first(self, bs: int) -> "TreeBatch":
        """The trees of the first bs requests; the same memory."""
        return TreeBatch(*(getattr(self, field.name)[:bs] for field in dataclasses.fields(self)))


class AcceptedBatch(NamedTuple):
    """The acceptance kernels' own layout. Flat ids are row*T + node."""

    predicts: torch.Tensor  # [bs*T] int32, predicts[flat(node)] = the token emitted after node
    accept_index: torch.Tensor  # [bs, S] int32 flat, root first, -1 beyond the path
    num_accepted: torch.Tensor  # [bs] int32, root and bonus not counted

    @classmethod
    def empty(cls, bs: int, width: int, max_path_len: int, device: torch.device | str) -> "AcceptedBatch":
        return cls(
            predicts=torch.zeros(bs * width, dtype=torch.int32, device=device),
            accept_index=torch.full((bs, max_path_len), -1, dtype=torch.int32, device=device),
            num_accepted=torch.zeros(bs, dtype=torch.int32, device=device),
        )

    def first(self, bs: int) -> "AcceptedBatch":
        """The paths of the first bs requests; the same memory."""
        width = self.predicts.shape[0] // self.num_accepted.shape[0]
        return AcceptedBatch(self.predicts[: bs * width], self.accept_index[:bs], self.num_accepted[:bs])

    def clear(self) -> None:
        """As the kernels want it: they write what they accept and nothing else."""
        self.predicts.zero_()
        self.accept_index.fill_(-1)
