"""A traced step of DDTREE.

In:  the worker's StepBuffers between its stages.
Out: the notes of the whole batch in a slot; behind them what a sampled or an adjusted step has beside, of
     the traced rows.
Not here: what notes hold (notes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ddviz.engines.sglang_plugin.step_buffers import StepBuffers
from ddviz.engines.sglang_plugin.tracing import reading
from ddviz.engines.sglang_plugin.tracing.notes import Notes
from ddviz.engines.sglang_plugin.tracing.ring import Sent
from ddviz.engines.sglang_plugin.tracing.traced_step import TracedStep, harmless


class DDTreeStep(TracedStep):
    def __init__(self, notes: Notes, *args: Any) -> None:
        super().__init__(*args)
        self._notes = notes
        self._unread: torch.Tensor | None = None  # logits that nothing will change
        self._later: list[Callable[[], None]] = []  # for after commit

    @harmless
    def raw(self, step: StepBuffers, logits: torch.Tensor, may_change: bool) -> None:
        """After the target's forward. may_change: its logits [bs*T, V] may not stay as they are."""
        if may_change:
            self._notes.read(step, logits)
        else:
            self._unread = logits

    @harmless
    def adjusted(self, logits: torch.Tensor, tree: reading.Linked) -> None:
        self._later.append(partial(super().adjusted, logits, tree))

    @harmless
    def sampled(self, part: slice, tree: reading.Linked, *more: Any) -> None:
        noted = partial(super().sampled, part, tree, *more)
        if part.stop - part.start == len(tree.tokens):
            self._later.append(noted)
        else:  # the batch was cut because its probabilities are large: they are not held any longer
            noted()

    @harmless
    def noted(self, step: StepBuffers, mask: torch.Tensor) -> None:
        """After commit, so that no stage has tracing in its time. mask: the flat one that attention read."""
        ring = self.tracer.ring
        if not ring.has_room():
            return
        for note in self._later:
            note()
        try:
            layout = self._notes.pack(step, mask, self._unread)
        except Exception:
            ring.recount()
            raise
        self._sent = Sent(ring.slots.take(), layout)  # now that the device is told to write it

    def _send(self) -> None:
        if self._sent is None:
            return
        self._join_sampled()
        if self._kept:
            self._sent = self.tracer.ring.add(self._sent, self._kept)
