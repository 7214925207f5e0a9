"""What a trace keeps of a DDTREE step, for the whole batch, read and packed by a stage of its own.

In:  StepBuffers, the draft head's lists, the mask, the target's logits before anything changes them.
Out: its bytes in a slot of the ring, and their layout.
Not here: what only a sampled or an adjusted step has (traced_step.py), slots and turns (ring.py).

Like the worker's own stages it is a CUDA graph: a traced step is one launch more, however much is kept.
"""

from collections.abc import Callable

import torch

from ddviz.engines.base import TARGET_TOP
from ddviz.engines.sglang_plugin.step_buffers import StageGraphs, StepBuffers
from ddviz.engines.sglang_plugin.tracing.jobs import Layout
from ddviz.engines.sglang_plugin.tracing.read_rows import RowFacts, read_rows
from ddviz.engines.sglang_plugin.tracing.reading import mask_cells, raw_statistics
from ddviz.engines.sglang_plugin.tracing.ring import Ring, array_of, as_bytes
from ddviz.engines.sglang_plugin.tracing.slots import WORD

DraftLists = Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # DraftHead.lists


class Notes:
    """Of one worker. What a step leaves here, the next one overwrites."""

    def __init__(self, steps: StepBuffers, lists: DraftLists, vocabulary: int, ring: Ring) -> None:
        """
        steps  the buffers of the largest batch
        lists  the draft head's `lists`
        ring   where the bytes go, a step of the largest batch in a slot
        """
        width, device = steps.tree.width, steps.roots.device
        self._lists = lists
        self._facts = RowFacts.empty(steps.bs * width, min(TARGET_TOP, vocabulary), device)
        self._node_logits = torch.empty((steps.bs, width), device=device)
        self._ring = ring
        self._rows = torch.arange(steps.bs, device=device)
        self._layouts: dict[int, Layout] = {}
        self._graphs = StageGraphs()
        self._logits: torch.Tensor | None = None  # [n, V], the one that graphs read

    def capture(self, steps: list[StepBuffers], logits: torch.Tensor, mask: torch.Tensor) -> None:
        """Graphs for these batches; logits [n, V] and mask are where SGLang's own graphs have them."""
        self._logits = logits
        for step in steps:
            self._graphs.capture(self._pack, step, mask)
            self._graphs.capture(self._read_and_pack, step, mask, logits[: step.bs * step.tree.width])
        self._ring.turn.zero_()  # before a stage is captured it runs once

    def pack(self, step: StepBuffers, mask: torch.Tensor, logits: torch.Tensor | None) -> Layout:
        """Everything of the step, after commit, on its way to the slot whose turn it is; to be called once a
        turn. logits: None where they were read.
        """
        if logits is None:
            self._graphs.run(self._pack, step, mask)
        elif self._logits is not None and logits.data_ptr() == self._logits.data_ptr():
            self._graphs.run(self._read_and_pack, step, mask, logits)
        else:  # an eager forward has them elsewhere
            self._read_and_pack(step, mask, logits)
        return self._layouts[step.bs]

    def _read_and_pack(self, step: StepBuffers, mask: torch.Tensor, logits: torch.Tensor) -> None:
        self.read(step, logits)
        self._pack(step, mask)

    def read(self, step: StepBuffers, logits: torch.Tensor) -> None:
        """The target's logits [bs*T, V], as the forward left them."""
        read_rows(logits, self._facts.first(logits.shape[0]))
        width = step.tree.width
        parent_rows = self._rows[: step.bs].unsqueeze(1) * width + step.tree.parents.clamp(min=0)
        at = parent_rows * logits.stride(0) + step.tree.tokens.clamp(0, logits.shape[1] - 1)
        flat = logits.as_strided((logits.shape[0] * logits.stride(0),), (1,))
        self._node_logits[: step.bs].copy_(flat[at])

    def _pack(self, step: StepBuffers, mask: torch.Tensor) -> None:
        arrays = self._arrays(step, mask)
        if step.bs not in self._layouts:
            self._layouts[step.bs] = Layout.of(
                array_of(name, tensor, whole=True) for name, tensor in arrays.items()
            )
        pieces = [as_bytes(tensor) for tensor in arrays.values()]
        padding = pieces[0][: -self._layouts[step.bs].size % WORD]  # any bytes: up to whole words
        self._ring.write(torch.cat([*pieces, padding]))

    def _arrays(self, step: StepBuffers, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """By the names that steps.py reads, [bs, ...] each."""
        tree, accepted = step.tree, step.accepted
        top_logprobs, top_ids = self._lists(step.bs)
        return {
            "turn": self._ring.turn.expand(step.bs),
            "seq_len": step.seq_lens,
            "top_logprobs": top_logprobs,
            "top_ids": top_ids,
            "tokens": tree.tokens,
            "parents": tree.parents,
            "ranks": tree.ranks,
            "scores": tree.scores,
            "counts": tree.counts,
            "retrieve_index": tree.retrieve_index,
            "next_token": tree.next_token,
            "next_sibling": tree.next_sibling,
            "positions": tree.positions,
            "slots": tree.slots,
            "mask": mask_cells(mask, step.seq_lens, tree.width, self._rows[: step.bs]),
            **self._statistics(step),
            "accept_index": accepted.accept_index,
            "num_accepted": accepted.num_accepted,
            "path_tokens": step.emitted,
            "bonus": step.bonus,
            "new_seq_len": step.new_seq_lens,
            "draft_kv_positions": step.positions,
            "src_slots": step.moves[..., 0],
            "dst_slots": step.moves[..., 1],
            "stamps": step.stamps.expand(step.bs, -1),
        }

    def _statistics(self, step: StepBuffers) -> dict[str, torch.Tensor]:
        bs, width = step.tree.tokens.shape
        facts = self._facts.first(bs * width).view(bs, width)
        of_parents = facts.logsumexp.gather(1, step.tree.parents.clamp(min=0).long())
        node_probs = torch.exp(self._node_logits[:bs] - of_parents)
        return {**raw_statistics(facts), "raw_node_probs": node_probs}
