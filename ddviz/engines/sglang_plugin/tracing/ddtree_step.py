"""A traced step of DDTREE.

In:  the worker's StepBuffers between its stages.
Out: what TracedStep copies to the host: the notes of the whole batch, and what a sampled or an adjusted step
     has beside, of the traced rows.
Not here: what notes hold (notes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ddviz.engines.sglang_plugin.step_buffers import StepBuffers
from ddviz.engines.sglang_plugin.tracing.jobs import Layout
from ddviz.engines.sglang_plugin.tracing.notes import Notes
from ddviz.engines.sglang_plugin.tracing.traced_step import TracedStep, harmless


class DDTreeStep(TracedStep):
    def __init__(self, notes: Notes, *args: Any) -> None:
        super().__init__(*args)
        self._notes = notes
        self._stage = ""  # under way
        self._packed: tuple[Layout, torch.Tensor] | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._stage = name
        yield
        self._clock.mark(name)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What runs in it is tracing's, and no part of the stage's time."""
        self._clock.mark(self._stage)
        yield
        self._clock.mark()

    @harmless
    def raw(self, step: StepBuffers, logits: torch.Tensor) -> None:
        """After the target's forward, before anything changes its logits [bs*T, V]."""
        with self._aside():
            self._notes.read(step, logits)

    @harmless
    def adjusted(self, *args: Any) -> None:
        with self._aside():
            super().adjusted(*args)

    @harmless
    def sampled(self, *args: Any) -> None:
        with self._aside():
            super().sampled(*args)

    @harmless
    def noted(self, step: StepBuffers, mask: torch.Tensor) -> None:
        """After commit. mask: the flat buffer that attention read."""
        self._packed = self._notes.pack(step, mask)

    def _send(self) -> None:
        self._join_sampled()
        self._copied = self.tracer.ring.put(self._kept, self._packed)
