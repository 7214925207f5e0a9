"""A tree of width one is a chain: with cap 1 and budget B-1 DDTREE takes the steps of built-in DFLASH."""

from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ("chain", "dflash")


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    params = {"temperature": 0, "max_new_tokens": 96}
    prompts = context.prompts[::6]
    chain = engines["chain"].generate(prompts, params, together=False)
    dflash = engines["dflash"].generate(prompts, params, together=False)
    steps = sum(len(a.accept_lens) for a in dflash)
    verdict.claim(steps > 100, f"only {steps} steps were noted")
    for i, (a, b) in enumerate(zip(chain, dflash, strict=True)):
        verdict.claim(a.output_ids == b.output_ids, f"prompt {i}: the outputs differ")
        verdict.claim(a.accept_lens == b.accept_lens, f"prompt {i}: {a.accept_lens} != {b.accept_lens}")
    verdict.figures.append(f"{len(prompts)} prompts, {steps} steps, accept lengths and outputs compared")
    return verdict
