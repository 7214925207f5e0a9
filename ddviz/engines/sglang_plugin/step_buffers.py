"""What one step reads and writes, at addresses that stay; and the CUDA graphs of stages over it.

In:  what SGLang's batch says: roots, lengths, rows of the request pool, what the requests ask of their trees.
Out: the same memory, filled in stage by stage.
Not here: what the stages do (tree_kernels.py, acceptance.py, commit.py).

A stage is a handful of small kernels, which the device runs in microseconds and Python takes far longer to
launch; as a graph they are one launch. All of it runs on the forward stream in order, so the next step may
overwrite what this one left; what leaves the worker is copied.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ddviz.engines.sglang_plugin.batch import AcceptedBatch, TreeBatch
from ddviz.trace.schema import STAGES


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """The arrays of a step of bs requests, T nodes and S path nodes each."""

    roots: torch.Tensor  # [bs] int64
    seq_lens: torch.Tensor  # [bs] int64, committed
    pool_rows: torch.Tensor  # [bs] int64, the requests' rows in req_to_token
    budgets: torch.Tensor  # [bs] int32
    caps: torch.Tensor  # [bs] int32
    tree: TreeBatch
    best: torch.Tensor  # [bs, T] int64, argmax of the target's logits
    accepted: AcceptedBatch
    accept_lens: torch.Tensor  # [bs] int32, tokens emitted
    new_seq_lens: torch.Tensor  # [bs] int64
    path: torch.Tensor  # [bs * S] int64, flat ids; beyond a path's end, 0
    emitted: torch.Tensor  # [bs, S] int64
    bonus: torch.Tensor  # [bs] int64
    front_slots: torch.Tensor  # [bs, S] int64, where the path's KV ends up
    positions: torch.Tensor  # [bs, S] int64, of the front slots
    moves: torch.Tensor  # [bs, S, 2] int64, source and destination slot of path node i; 0 beyond the path
    stamps: torch.Tensor  # [6] int64, ns at which the stages began and the last one ended; see stamps.py

    @classmethod
    def empty(cls, bs: int, width: int, max_path_len: int, device: torch.device | str) -> "StepBuffers":
        def ints(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            roots=ints(bs),
            seq_lens=ints(bs),
            pool_rows=ints(bs),
            budgets=ints(bs, dtype=torch.int32),
            caps=ints(bs, dtype=torch.int32),
            tree=TreeBatch.empty(bs, width, device),
            best=ints(bs, width),
            accepted=AcceptedBatch.empty(bs, width, max_path_len, device),
            accept_lens=ints(bs, dtype=torch.int32),
            new_seq_lens=ints(bs),
            path=ints(bs * max_path_len),
            emitted=ints(bs, max_path_len),
            bonus=ints(bs),
            front_slots=ints(bs, max_path_len),
            positions=ints(bs, max_path_len),
            moves=ints(bs, max_path_len, 2),
            stamps=ints(len(STAGES) + 1),
        )

    @property
    def bs(self) -> int:
        return self.roots.shape[0]

    def first(self, bs: int) -> "StepBuffers":
        """The buffers of the first bs requests; the same memory."""
        return StepBuffers(
            roots=self.roots[:bs],
            seq_lens=self.seq_lens[:bs],
            pool_rows=self.pool_rows[:bs],
            budgets=self.budgets[:bs],
            caps=self.caps[:bs],
            tree=self.tree.first(bs),
            best=self.best[:bs],
            accepted=self.accepted.first(bs),
            accept_lens=self.accept_lens[:bs],
            new_seq_lens=self.new_seq_lens[:bs],
            path=self.path[: bs * self.emitted.shape[1]],
            emitted=self.emitted[:bs],
            bonus=self.bonus[:bs],
            front_slots=self.front_slots[:bs],
            positions=self.positions[:bs],
            moves=self.moves[:bs],
            stamps=self.stamps,
        )


class StageGraphs:
    """One CUDA graph for each stage and batch size that was captured; other stages run as they are.

    A stage is a function of StepBuffers and of more tensors, which must be the same memory in every call.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[str, int], torch.cuda.CUDAGraph] = {}
        self._pool: tuple[int, int] | None = None

    def capture(self, stage: Callable[..., None], step: StepBuffers, *more: torch.Tensor) -> None:
        stage(step, *more)  # compiles kernels, makes workspaces
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            stage(step, *more)
        self._pool = graph.pool()
        self._graphs[stage.__name__, step.bs] = graph

    def run(self, stage: Callable[..., None], step: StepBuffers, *more: torch.Tensor) -> None:
        graph = self._graphs.get((stage.__name__, step.bs))
        if graph is None:
            stage(step, *more)
        else:
            graph.replay()
