"""Sampling is exact: tokens 2 and 3 of 20,000 requests, given token 1, against `ddviz.tree.target_probs`.

Token 1 comes from prefill; tokens 2 and 3 are those of the first verify step (or, where token 2 was not in
the tree, of the first two). The reference is the target in transformers, float32, through target_probs. The
G-test is that of `ddviz losslessness`; the same samples must fail against a temperature a tenth lower, which
shows that the test can. What top-k or top-p barely keeps or barely leaves out may go the other way by the
rounding of logits: such tokens are taken out of counts and law alike, and their share is told.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from ddviz.check.gtest import NOTHING, GTest, against_law
from ddviz.tree import target_probs
from scripts.gpu.checks import Context, Engines, Verdict, refusal, same_outputs
from scripts.gpu.lab import questions

QUESTION = "Name a random animal and a color."  # many answers are as good
REQUESTS = 20_000
NEAR_MASS, NEAR_LOGIT = 1e-3, 1e-2  # of the limits of top-p and top-k: what TF32 attention may move
LEAST = 300  # requests that share a prefix, for it to be tested
ALARM = 1e-4  # per setting; five settings: 1 false alarm in 2,000 runs
SETTINGS = (
    {"temperature": 0.6},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.9},
)
NEEDS = (*(f"tree-many-{i}" for i in range(len(SETTINGS))), "tree-seeded", "tree")


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    (prompt,) = questions([QUESTION], context.target)

    def outputs(name: str, setting: dict) -> list[tuple]:
        params = {**setting, "max_new_tokens": 3, "ignore_eos": True}
        return [tuple(a.output_ids) for a in engines[name].generate([prompt] * REQUESTS, params)]

    with ThreadPoolExecutor() as pool:  # one engine a setting, side by side
        runs = list(pool.map(outputs, NEEDS, SETTINGS))
    reference = Reference(context)
    for setting, tokens in zip(SETTINGS, runs, strict=True):
        _test(verdict, setting, tokens, prompt, reference)
    _seeds(verdict, engines, context)
    return verdict


class Reference:
    """Logits of the target after any tokens, in float32."""

    def __init__(self, context: Context) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(context.target, dtype=torch.float32)
        self._model = model.cuda().eval()

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> np.ndarray:
        return self._model(torch.tensor([ids], device="cuda")).logits[0, -1].cpu().numpy()


def _test(
    verdict: Verdict, setting: dict, outputs: list[tuple], prompt: list[int], reference: Reference
) -> None:
    groups: dict[tuple, Counter] = {}
    for one, two, three in outputs:
        groups.setdefault((one,), Counter())[two] += 1
        groups.setdefault((one, two), Counter())[three] += 1
    right = wrong = NOTHING
    left_out = 0
    for prefix, counts in groups.items():
        if sum(counts.values()) < LEAST:
            continue
        logits = reference.logits([*prompt, *prefix])
        sure = ~borderline(logits, **setting)
        left_out += sum(count for token, count in counts.items() if not sure[token])
        right += _test_of(counts, target_probs(logits, **setting), sure)
        cooler = {**setting, "temperature": setting["temperature"] * 0.9}
        wrong += _test_of(counts, target_probs(logits, **cooler), sure)
    name = ", ".join(f"{key} {value}" for key, value in setting.items())
    verdict.figures.append(
        f"{name}: G = {right.g:.1f}, {right.freedom} degrees of freedom, p = {right.p_value:.3g}, "
        f"{right.draws} tokens tested, {left_out} at a limit left out; "
        f"finds a divergence of {right.divergence_found(ALARM):.2g} nats with 99 % power; "
        f"against T x 0.9: p = {wrong.p_value:.2g}"
    )
    enough = right.draws > REQUESTS // 2 and right.freedom > 0
    verdict.claim(enough, f"{name}: only {right.draws} tokens could be tested")
    verdict.claim(
        right.p_value > ALARM, f"{name}: tokens are not distributed as target_probs, p = {right.p_value:.3g}"
    )
    verdict.claim(wrong.p_value < ALARM, f"{name}: the test would not have found a temperature a tenth lower")


def _test_of(counts: Counter, probs: np.ndarray, sure: np.ndarray) -> GTest:
    observed = np.bincount(list(counts.elements()), minlength=len(probs)) * sure
    law = probs * sure
    return against_law(observed, law / law.sum()) if law.sum() else NOTHING


def borderline(logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """[V] bool: tokens that slightly other logits would keep or leave out."""
    near = np.zeros(len(logits), bool)
    if top_k:
        near |= np.abs(logits - np.sort(logits)[-top_k]) / temperature < NEAR_LOGIT
        near &= np.abs(np.sort(logits)[-top_k] - np.sort(logits)[-top_k - 1]) / temperature < NEAR_LOGIT
    if top_p < 1:
        probs = target_probs(logits, temperature, top_k)
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]
        near[order[(np.abs(before - top_p) < NEAR_MASS) & (probs[order] > 0)]] = True
    return near


def _seeds(verdict: Verdict, engines: Engines, context: Context) -> None:
    """Seeded requests repeat where inference is deterministic; elsewhere they are refused."""
    prompts = context.prompts[:8]
    params = [{"temperature": 1.0, "max_new_tokens": 48, "sampling_seed": 100 + i} for i in range(8)]
    engine = engines["tree-seeded"]
    first, second = engine.generate(prompts, params), engine.generate(prompts, params)
    alone = engine.generate(prompts, params, together=False)
    other = engine.generate(prompts, [{**p, "sampling_seed": p["sampling_seed"] + 50} for p in params])
    same = sum(
        a.output_ids == b.output_ids == c.output_ids for a, b, c in zip(first, second, alone, strict=True)
    )
    differ = len(other) - same_outputs(first, other)
    verdict.figures.append(
        f"seeds: {same} of 8 repeat alone and in a batch, {differ} of 8 differ with others"
    )
    verdict.claim(same == 8, "a seeded request did not repeat")
    verdict.claim(differ >= 6, "other seeds gave the same outputs")
    sentence = refusal(engines["tree"], prompts[0], params[0])
    verdict.figures.append(f"a seed without determinism: {sentence}")
    verdict.claim(
        sentence is not None and "sampling_seed" in sentence, "a seed was ignored where it cannot be honoured"
    )
