"""One request while it runs: what its stages hand to each other, what it has emitted, and when it ends.

In:  GenerateParams, cut to what the target can do; tokens as the acceptance emits them.
Out: the values of a step, for its stages and its record; Result.
Not here: computing them (step.py), writing them down (record.py).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.kv_cache import SlotCache
from ddviz.trace.schema import FinishReason
from ddviz.tree import AcceptedPath, Retrieve, TreeAcceptance


class Draft(NamedTuple):
    """What the drafter's forward gave: candidates per position, falling. [B-1, K]"""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]


class VerifyInput(NamedTuple):
    """What the target's forward is given, T = n."""

    prefix_len: int  # committed rows before the step
    retrieve: Retrieve
    positions: NDArray[np.int64]  # [n]
    slots: torch.Tensor  # [n]
    mask: NDArray[np.bool_]  # [n, n]


class Verdict(NamedTuple):
    """What the target said, and what was made of it."""

    forward: int  # the engine's forward counter
    logits: torch.Tensor  # [n, V] float32
    argmax: NDArray[np.int64] | None  # [n] greedy decisions follow it; None = sampled
    probs: torch.Tensor | None  # [n, V] float32 after temperature and filters; None = greedy
    coins: NDArray[np.float32] | None  # [n + 1], the last draws the bonus
    acceptance: TreeAcceptance
    outcome: AcceptedPath


class Committed(NamedTuple):
    source: torch.Tensor  # [k] slots
    destination: torch.Tensor  # [k]
    draft_positions: torch.Tensor | None  # [k] rows appended to the drafter's KV


@dataclass(slots=True)
class Run:
    """One request while it runs."""

    params: GenerateParams
    max_new_tokens: int
    cache: SlotCache
    draft_cache: SlotCache | None
    coins: np.random.Generator
    stop_ids: list[int]  # of the target: they end a text
    root: int = -1  # last emitted token, its KV not in the cache yet
    steps: int = 0
    output: list[int] = field(default_factory=list)

    def cut(self, emitted: list[int]) -> list[int]:
        """What may join the output: up to a stop token, and no more than max_new_tokens."""
        for index, token in enumerate(emitted):
            if token in self.stop_ids:
                emitted = emitted[: index + 1]
                break
        return emitted[: self.max_new_tokens - len(self.output)]

    def finished(self) -> FinishReason | None:
        """Why nothing more may be emitted; None while something may."""
        if self.output[-1] in self.stop_ids:
            return "stop"
        if len(self.output) < self.max_new_tokens:
            return None
        return "length" if self.max_new_tokens == self.params.max_new_tokens else "context"


@dataclass(frozen=True, slots=True)
class Result:
    output_ids: list[int]  # prefill token and all emitted
    finish_reason: FinishReason
    steps: int
    accept_lengths: list[int]  # per step, bonus counted, not cut
    decode_s: float  # prefill not counted

    @property
    def tokens_per_s(self) -> float:
        """Tokens that steps emitted, per second of decoding."""
        return max(0, len(self.output_ids) - 1) / self.decode_s if self.decode_s else 0.0
