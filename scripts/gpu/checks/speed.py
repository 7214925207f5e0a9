"""Tokens/s beside autoregression and built-in DFLASH on the HumanEval prompts, bf16, batch 1 and 16."""

import time

from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ("ar-bf16", "dflash-bf16", "tree-bf16", "wide-bf16")
TOKENS = 192
OVER_DFLASH, OVER_AR = 1.25, 1.5  # the aim at batch 1, greedy


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    prompts = [p for p, tag in zip(context.prompts, context.tags, strict=True) if tag == "humaneval"]
    for name in NEEDS:
        for temperature in (0, 0.8):
            for count in (1, 16):
                params = {"temperature": temperature, "max_new_tokens": 64, "top_p": 0.95}
                engines[name].generate(prompts[:count], params)  # compiles what a first request compiles
    rates: dict[tuple[str, float, int], float] = {}
    for batch in (1, 16):
        for temperature in (0.0, 0.6, 1.0):
            for name in NEEDS:
                chosen = prompts[:16] if batch == 16 else prompts[: 20 if temperature == 0 else 8]
                begun = time.monotonic()
                answers = engines[name].generate(
                    chosen, {"temperature": temperature, "max_new_tokens": TOKENS}, together=batch == 16
                )
                spent = time.monotonic() - begun
                rates[name, temperature, batch] = sum(len(a.output_ids) for a in answers) / spent
            row = ", ".join(f"{name} {rates[name, temperature, batch]:.0f}" for name in NEEDS)
            verdict.figures.append(f"batch {batch}, T = {temperature}: tokens/s {row}")
    best = max(rates["tree-bf16", 0.0, 1], rates["wide-bf16", 0.0, 1])
    over_dflash, over_ar = best / rates["dflash-bf16", 0.0, 1], best / rates["ar-bf16", 0.0, 1]
    verdict.figures.append(f"batch 1, greedy: {over_dflash:.2f} x DFLASH, {over_ar:.2f} x autoregression")
    verdict.claim(over_dflash >= OVER_DFLASH, f"{over_dflash:.2f} x DFLASH, the aim is {OVER_DFLASH}")
    verdict.claim(over_ar >= OVER_AR, f"{over_ar:.2f} x autoregression, the aim is {OVER_AR}")
    return verdict
