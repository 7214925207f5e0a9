"""One step some rows of which are traced, from before draft until its arrays are on their way to the host.

In:  the tensors that the stages of the step leave, in the worker.
Out: Pending, hung on the step's result: the scheduler takes it when it takes the result (tracer.py).
Not here: what is read from the tensors (reading.py), which requests are traced (tracer.py).

    raw, adjusted, sampled   between stages: what a later stage overwrites
    launched()               after commit: everything on its way to the host
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ddviz.engines.sglang_plugin.batch import AcceptedBatch, TreeBatch
from ddviz.engines.sglang_plugin.step_buffers import StepBuffers
from ddviz.engines.sglang_plugin.tracing import reading
from ddviz.engines.sglang_plugin.tracing.clock import Clock
from ddviz.engines.sglang_plugin.tracing.ring import Sent
from ddviz.engines.sglang_plugin.tracing.steps import HostFacts
from ddviz.trace import schema

if TYPE_CHECKING:
    from ddviz.engines.sglang_plugin.tracing.tracer import Tracer

RING_FULL = "the ring between the device and the writers was full"
FAILED = "tracing failed, see the server's log"


@dataclass(slots=True)
class Traced:
    """One request under way."""

    rid: str  # of the request and of its trace
    level: schema.CaptureLevel
    steps: int = 0  # launched
    written: int = 0  # settled
    begun: bool = False


class NoStep:
    """A step in which nobody is traced."""

    def raw(self, step: StepBuffers, logits: torch.Tensor, may_change: bool) -> None: ...
    def noted(self, step: StepBuffers, mask: torch.Tensor) -> None: ...
    def adjusted(self, logits: torch.Tensor, tree: TreeBatch) -> None: ...
    def sampled(self, *tensors: torch.Tensor | slice) -> None: ...
    def launched(self, result: Any, graph: bool) -> None: ...


NO_STEP = NoStep()


@dataclass
class Pending:
    """A step whose arrays are under way, hung on SGLang's result until the scheduler has taken it."""

    sent: Sent | None
    lost: str  # why it is not, where it is not sent
    rows: list[tuple[Traced, HostFacts]]
    clock: Clock  # its last mark comes after the last write to the slot


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """A failing tracer never breaks serving: after an error the rest of the step is not traced.

    Within another such method it is that one's to answer for.
    """

    @functools.wraps(method)
    def guarded(self: TracedStep, *args: Any, **kwargs: Any) -> None:
        if self.guards:
            method(self, *args, **kwargs)
        elif not self.broken:
            with self.tracer.guarded():
                self.guards = self.broken = True
                try:
                    method(self, *args, **kwargs)
                finally:
                    self.guards = False
                self.broken = False

    return guarded


class TracedStep(NoStep):
    """A step some rows of which are traced. Its tensors are those rows' alone."""

    def __init__(self, tracer: Tracer, batch: Any, rows: list[int], traced: list[Traced]) -> None:
        self.tracer, self._batch = tracer, batch
        self.broken = self.guards = False
        self._sent: Sent | None = None
        self._facts: list[HostFacts] | None = None
        self._row_list, self._traced = rows, traced
        self._rows = tracer.on_device(rows, batch.seq_lens.device)
        self._kept: dict[str, torch.Tensor] = {}
        self._sampled: list[dict[str, torch.Tensor]] = []
        self._clock = tracer.clock(batch.seq_lens.device)

    @harmless
    def adjusted(self, logits: torch.Tensor, tree: reading.Linked) -> None:
        """Logits [bs*T, V] of a greedy step after something changed them: what its argmax was taken from."""
        bs, width = tree.tokens.shape
        probs = torch.softmax(logits.view(bs, width, -1)[self._rows].float(), dim=-1)
        self._kept |= reading.filtered_statistics(probs, tree, self._rows)

    @harmless
    def sampled(
        self,
        part: slice,
        tree: reading.Linked,
        probs: torch.Tensor,
        rejected: torch.Tensor,
        accepted: AcceptedBatch,
        coins: torch.Tensor,
        final_coins: torch.Tensor,
    ) -> None:
        """After the sampling kernel, for the rows `part` of the batch that it was given."""
        own = [row for row in self._row_list if part.start <= row < part.stop]
        if not own:
            return
        rows = self.tracer.on_device(own, probs.device)
        if len(own) < part.stop - part.start:
            local = rows - part.start
            probs, rejected = probs[local], rejected[local]
        path_end = accepted.num_accepted[rows].long().unsqueeze(1)
        last = accepted.accept_index[rows].gather(1, path_end).squeeze(1).long()
        bonus = accepted.predicts[last].long()
        draw = reading.bonus_draw(probs, rejected, last - rows * tree.width, bonus)
        statistics = reading.filtered_statistics(probs, tree, rows)
        self._sampled.append({**statistics, **draw, "coins": coins[rows], "final_coin": final_coins[rows]})

    def launched(self, result: Any, graph: bool) -> None:
        """Send all that was kept towards the host; hang what is known on the result."""
        self._finish(graph)
        with self.tracer.guarded():
            if self.broken and self._sent is not None:  # what there is of it would pass for all of it
                self.tracer.ring.slots.give_back(self._sent.turn)
                self._sent = None
            unknown = [HostFacts(r.steps, 0, 0, 0, graph, 0, 0) for r in self._traced]  # of a lost step
            rows = list(zip(self._traced, self._facts or unknown, strict=True))
            for request in self._traced:
                request.steps += 1
            result.ddviz_step = Pending(self._sent, self._why_lost(), rows, self._clock)

    @harmless
    def _finish(self, graph: bool) -> None:
        self._send()
        self._facts = self._facts_of(graph)
        self._clock.mark()

    def _send(self) -> None:
        self._join_sampled()
        self._sent = self.tracer.ring.put(self._kept)

    def _join_sampled(self) -> None:
        if len(self._sampled) == 1:
            self._kept |= self._sampled[0]
        elif self._sampled:
            for name in self._sampled[0]:
                self._kept[name] = torch.cat([part[name] for part in self._sampled])

    def _why_lost(self) -> str:
        """Why the step is not sent, where it is not."""
        return FAILED if self.broken else RING_FULL

    def _facts_of(self, graph: bool) -> list[HostFacts]:
        reqs, batch_id = self._batch.reqs, int(self._batch.forward_iter or 0)
        return [
            HostFacts(
                index=request.steps,
                batch_id=batch_id,
                batch_size=len(reqs),
                row=row,
                graph=graph,
                reserved_len=int(reqs[row].kv.kv_allocated_len),
                row_width=self.tracer.row_width,
            )
            for row, request in zip(self._row_list, self._traced, strict=True)
        ]
