"""One real step with a vocabulary so small that all it may emit can be enumerated, and draws of it.

In:  a loaded TorchEngine, request parameters.
Out: SmallStep; its exact law; what tree/accept.py and the engine's own verify stage emit, many times.
Not here: the enumeration (law.py), the verdict (losslessness.py).
"""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ddviz.check.gtest import GTest, against_law
from ddviz.check.law import Law, biased_law, children_of, exact_law
from ddviz.check.samplers import OnProgress
from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.record import NoRecording
from ddviz.engines.torch_engine.run import Run, VerifyInput
from ddviz.errors import EngineError
from ddviz.tree import DraftTree, accepted_paths, sample_tree_paths, target_probs

KEPT = 3  # likeliest tokens of each row that the reduced vocabulary holds, beside the tree's
TEXTS, TEXT_TOKENS = 4, 8  # short texts that the step is chosen from


class SmallStep(NamedTuple):
    """A real step, its vocabulary reduced: the last token stands for all that are left."""

    run: Run
    tree: DraftTree
    inputs: VerifyInput
    logits: torch.Tensor  # [n, V'] float32
    longest: int


def small_step(engine: TorchEngine, params: GenerateParams, seed: int) -> SmallStep:
    """Of the steps of a few short texts, the one that a bias of the coins would show in most.

    Raises EngineError where every text ends before its first step.
    """
    caught = _Caught(engine.drafter.block_size if engine.drafter is not None else 1)
    for text in range(TEXTS):
        asked = msgspec.structs.replace(params, max_new_tokens=TEXT_TOKENS, seed=seed + text)
        engine.generate(asked, caught)
    if not caught.steps:
        raise EngineError(f"{TEXTS} texts ended at their first token; choose another --prompt")
    return max(caught.steps, key=_sensitivity)


class _Caught(NoRecording):
    """A recording that keeps every step, its rows reduced."""

    def __init__(self, longest: int) -> None:
        self.steps: list[SmallStep] = []
        self._longest = longest

    def step(self, *stages: Any) -> None:
        run, _, tree, inputs, verdict = stages[:5]
        device = verdict.logits.device
        kept = torch.cat([verdict.logits.topk(KEPT).indices.flatten().cpu(), torch.from_numpy(tree.tokens)])
        kept = kept.unique()
        rest = verdict.logits.index_fill(1, kept.to(device), -torch.inf).logsumexp(dim=1, keepdim=True)
        logits = torch.cat([verdict.logits[:, kept.to(device)], rest], dim=1)
        small = replace(tree, tokens=np.searchsorted(kept.numpy(), tree.tokens))
        self.steps.append(SmallStep(run, small, inputs, logits, self._longest))


def probs_of(step: SmallStep) -> NDArray[np.float32]:
    params = step.run.params
    return target_probs(step.logits.cpu().numpy(), params.temperature, params.top_k, params.top_p)


def law_of(step: SmallStep, threshold_acc: float = 1.0) -> Law:
    """What the step should emit; or, below 1, what a threshold_acc makes of it."""
    tree, probs, children = step.tree, probs_of(step), children_of(step.tree.parents)
    if threshold_acc < 1:
        return biased_law(tree.tokens, children, probs, step.longest, threshold_acc)
    return exact_law(tree.tokens, children, probs, step.longest)


def _sensitivity(step: SmallStep) -> float:
    """Divergence of the step under threshold_acc 0.9 from its law, in nats."""
    law, biased = law_of(step), law_of(step, 0.9)
    return float(sum(p * np.log(p / law[emitted]) for emitted, p in biased.items() if p and law.get(emitted)))


def draws_of_twin(
    step: SmallStep, probs: NDArray[np.float32], params: GenerateParams, draws: int, seed: int
) -> Counter[tuple[int, ...]]:
    """What `sample_tree_paths` emits, each draw a row of one batch."""
    n, retrieve = len(step.tree), step.inputs.retrieve
    coins = np.random.Generator(np.random.Philox(seed)).random((draws, n + 1), dtype=np.float32)
    same = [
        np.broadcast_to(links, (draws, n))
        for links in (step.tree.tokens, retrieve.next_token, retrieve.next_sibling)
    ]
    acceptance = sample_tree_paths(
        same[0],
        retrieve.index + np.arange(draws)[:, None] * n,
        *same[1:],
        np.broadcast_to(probs, (draws, *probs.shape)),
        coins[:, :n],
        coins[:, n],
        step.longest,
        params.threshold_single,
        params.threshold_acc,
    )
    return Counter(tuple(path.emitted.tolist()) for path in accepted_paths(acceptance, n))


@torch.inference_mode()
def draws_of_engine(
    engine: TorchEngine, step: SmallStep, draws: int, on_progress: OnProgress
) -> Counter[tuple[int, ...]]:
    """What the engine's verify stage emits, its forward's logits given."""
    twin = copy.copy(engine)
    twin.target = _GivenLogits(engine.target, step.logits)
    seen: Counter[tuple[int, ...]] = Counter()
    for i in range(draws):
        if i % 1000 == 0:
            on_progress(i)
        seen[tuple(twin.verify(step.run, step.tree, step.inputs).outcome.emitted.tolist())] += 1
    return seen


class _GivenLogits:
    """A target whose forward is done."""

    def __init__(self, target: Any, logits: torch.Tensor) -> None:
        self._target, self._logits = target, logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, *inputs: object) -> None: ...

    def logits(self, hidden: None) -> torch.Tensor:
        return self._logits


def against_the_law(seen: Counter[tuple[int, ...]], law: Law) -> GTest:
    outside = sum(count for emitted, count in seen.items() if emitted not in law)
    return against_law([*(seen[emitted] for emitted in law), outside], [*law.values(), 0.0])
