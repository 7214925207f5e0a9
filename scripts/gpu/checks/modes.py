"""CUDA graph on or off, overlap scheduling on or off: the same steps."""

from scripts.gpu.checks import Context, Engines, Verdict, same_outputs

NEEDS = ("tree", "tree-eager", "tree-sync", "tree-eager-sync")


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    params = {"temperature": 0, "max_new_tokens": 64}
    for together, prompts in ((False, context.prompts[::8]), (True, context.prompts[::2])):
        wanted = engines["tree-eager-sync"].generate(prompts, params, together=together)
        steps = sum(len(a.accept_lens) for a in wanted)
        verdict.claim(steps > 100, f"only {steps} steps were noted")
        for name in NEEDS[:3]:
            got = engines[name].generate(prompts, params, together=together)
            same = sum(a.accept_lens == b.accept_lens for a, b in zip(wanted, got, strict=True))
            outputs = same_outputs(wanted, got)
            how = "together" if together else "one by one"
            verdict.figures.append(
                f"{name}, {how}: steps equal on {same}, outputs on {outputs} of {len(got)}, {steps} steps"
            )
            verdict.claim(
                same == outputs == len(got), f"{name}, {how}: not all equal to eager without overlap"
            )
    return verdict
