"""Architectures that the demo pair has not: MLA and MoE as in DeepSeek-V3 and Kimi-K2, and two GPUs.

Greedy DDTREE = autoregression for each toy target, up to near-ties. How near is measured: autoregression is
asked one by one and together, which adds in another order (in a mixture of experts the router has near-ties
too); the widest logit gap at which it parts from itself is what DDTREE may part at. With two GPUs, tensor
parallel 2 = 1. The engines are started here, because their models are made here.
"""

import contextlib
import random
import tempfile
from pathlib import Path

import torch

from scripts.gpu import toy_models
from scripts.gpu.checks import Context, Engines, Verdict, same_outputs
from scripts.gpu.checks.greedy import first_difference
from scripts.gpu.lab import TREE, EngineProcess, Lab

NEEDS = ()
PROMPTS, TOKENS = 24, 64
NEAR_TIE = 1e-4  # of float32 logits: what another order of sums may move
WIDEST_TIE = 1e-3  # beyond it, autoregression parting from itself would explain too much
WIDE = {
    **TREE,
    "speculative_ddtree_topk_cap": 0,
    "speculative_ddtree_budget": 48,
}
SHARED = {"skip_tokenizer_init": True, "enable_multimodal": False}  # kimi_k25 has no processor here


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    generator = random.Random(4)
    prompts = [
        [generator.randrange(2, toy_models.VOCABULARY - 1) for _ in range(generator.randrange(5, 90))]
        for _ in range(PROMPTS)
    ]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        labs = {}
        for kind in ("llama", "deepseek", "kimi"):
            target, draft = toy_models.make(kind, folder / kind)
            labs[kind] = stack.enter_context(Lab(target, draft, context.out / kind))
        started = {kind: _start(kind, lab) for kind, lab in labs.items()}
        for kind, lab in labs.items():
            lab.wait()
            try:
                _compare(verdict, kind, started[kind], prompts)
            except RuntimeError as error:  # the other kinds are still worth a look
                verdict.failures.append(f"{kind}: {error}")
    if torch.cuda.device_count() == 1:
        verdict.figures.append("tensor parallel 2: not tried, one GPU")
    return verdict


def _start(kind: str, lab: Lab) -> list[EngineProcess]:
    """Autoregression, DDTREE and, where there are two GPUs, DDTREE on both."""
    engines = [lab.start("ar", **SHARED), lab.start("tree", log_steps=True, **SHARED, **WIDE)]
    if kind == "llama" and torch.cuda.device_count() > 1:
        engines.append(lab.start("tree-tp2", log_steps=True, tp_size=2, **SHARED, **WIDE))
    return engines


def _compare(verdict: Verdict, kind: str, engines: list[EngineProcess], prompts: list[list[int]]) -> None:
    reference, *others = engines
    params = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    wanted = reference.generate(prompts, params)
    alone = reference.generate(prompts, params, together=False)
    stable = same_outputs(wanted, alone)
    verdict.figures.append(f"{kind}: autoregression one by one = together on {stable} of {len(prompts)}")
    verdict.claim(stable >= len(prompts) * 3 // 4, f"{kind}: autoregression hardly agrees with itself")
    widest = NEAR_TIE
    for i, (a, b) in enumerate(zip(wanted, alone, strict=True)):
        if a.output_ids != b.output_ids:
            at, gap = first_difference(reference, prompts[i], a, b)
            widest = max(widest, gap)
            verdict.figures.append(f"  request {i} parts from itself at token {at}, logit gap {gap:.2g}")
    verdict.claim(widest < WIDEST_TIE, f"{kind}: autoregression parts from itself at a gap of {widest:.2g}")
    for engine in others:
        got = engine.generate(prompts, params)
        differing = [i for i, a in enumerate(got) if a.output_ids != wanted[i].output_ids]
        same = len(prompts) - len(differing)
        steps = sum(len(a.accept_lens) for a in got)
        length = sum(sum(a.accept_lens) for a in got) / max(1, steps)
        verdict.figures.append(
            f"{kind}, {engine.name}: {same} of {len(prompts)} as autoregression, accept length {length:.2f}"
        )
        for i in differing:
            at, gap = first_difference(reference, prompts[i], wanted[i], got[i])
            told = f"{kind}, {engine.name}: request {i} parts at token {at}, logit gap {gap:.2g}"
            verdict.figures.append(told)
            verdict.claim(gap <= widest, told)
        verdict.claim(length > 1.02, f"{kind}, {engine.name}: nothing was accepted, so nothing was tested")
