"""A traced step of DDTREE.

In:  the worker's StepBuffers between its stages.
Out: what TracedStep copies to the host: the notes of the whole batch, and what a sampled or an adjusted step
     has beside, of the traced rows.
Not here: what notes hold (notes.py).
"""

from __future__ import annotations

from typing import Any

import torch

from ddviz.engines.sglang_plugin.step_buffers import StepBuffers
from ddviz.engines.sglang_plugin.tracing.jobs import Array
from ddviz.engines.sglang_plugin.tracing.notes import Notes
from ddviz.engines.sglang_plugin.tracing.traced_step import TracedStep, harmless


class DDTreeStep(TracedStep):
    def __init__(self, notes: Notes, *args: Any) -> None:
        super().__init__(*args)
        self._notes = notes
        self._packed: tuple[list[Array], torch.Tensor] | None = None

    @harmless
    def raw(self, step: StepBuffers, logits: torch.Tensor) -> None:
        """After the target's forward, before anything changes its logits [bs*T, V]."""
        self._notes.read(step, logits)

    @harmless
    def noted(self, step: StepBuffers, mask: torch.Tensor) -> None:
        """After commit. mask: the flat buffer that attention read."""
        self.tracer.ring.hold()
        self._packed = self._notes.pack(step, mask)

    def _send(self) -> None:
        self._join_sampled()
        self._copied = self.tracer.ring.put(self._kept, self._packed)
