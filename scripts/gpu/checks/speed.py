"""Tokens/s beside autoregression and built-in DFLASH on the HumanEval prompts, bf16, batch 1 and 16.

Medians of rounds in which the engines take turns, so that what else the host does falls on all of them.
"""

import time
from statistics import median

from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ("ar-bf16", "dflash-bf16", "tree-bf16", "wide-bf16")
TOKENS, ROUNDS = 192, 5
OVER_DFLASH, OVER_AR = 1.25, 1.5  # the aim at batch 1, greedy


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    prompts = [p for p, tag in zip(context.prompts, context.tags, strict=True) if tag == "humaneval"]
    for name in NEEDS:
        for temperature in (0, 0.8):
            for count in (1, 16):  # compiles what a first request compiles
                engines[name].generate(prompts[:count], {"temperature": temperature, "max_new_tokens": 64})
    rates: dict[tuple[str, float, int], float] = {}
    for batch in (1, 16):
        for temperature in (0.0, 0.6, 1.0):
            measured = _rounds(engines, prompts, batch, temperature)
            rates |= {(name, temperature, batch): rate for name, rate in measured.items()}
            row = ", ".join(f"{name} {rate:.0f}" for name, rate in measured.items())
            verdict.figures.append(f"batch {batch}, T = {temperature}: tokens/s {row}")
    best = max(rates["tree-bf16", 0.0, 1], rates["wide-bf16", 0.0, 1])
    over_dflash, over_ar = best / rates["dflash-bf16", 0.0, 1], best / rates["ar-bf16", 0.0, 1]
    verdict.figures.append(f"batch 1, greedy: {over_dflash:.2f} x DFLASH, {over_ar:.2f} x autoregression")
    verdict.claim(over_dflash >= OVER_DFLASH, f"{over_dflash:.2f} x DFLASH, the aim is {OVER_DFLASH}")
    verdict.claim(over_ar >= OVER_AR, f"{over_ar:.2f} x autoregression, the aim is {OVER_AR}")
    return verdict


def _rounds(engines: Engines, prompts: list[list[int]], batch: int, temperature: float) -> dict[str, float]:
    """Median tokens/s of each engine: 4 prompts one by one, or 16 together, in a round."""
    params = {"temperature": temperature, "max_new_tokens": TOKENS}
    rates: dict[str, list[float]] = {name: [] for name in NEEDS}
    for i in range(ROUNDS):
        chosen = prompts[:16] if batch > 1 else prompts[4 * i : 4 * i + 4]
        for name in NEEDS:
            begun = time.monotonic()
            answers = engines[name].generate(chosen, params, together=batch > 1)
            spent = time.monotonic() - begun
            rates[name].append(sum(len(a.output_ids) for a in answers) / spent)
    return {name: median(values) for name, values in rates.items()}
