"""Where a step's time goes: a torch profile of greedy decoding at batch 1 in bf16. No verdict."""

from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ("tree-bf16", "wide-bf16")


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    for name in NEEDS:
        params = {"temperature": 0, "max_new_tokens": 96, "ignore_eos": True}
        engines[name].generate(context.prompts[:1], params)
        folder = context.out / f"profile-{name}"
        engines[name].call("start_profile", output_dir=str(folder), activities=["CPU", "GPU"])
        engines[name].generate(context.prompts[:1], params)
        engines[name].call("stop_profile")
        verdict.figures.append(f"{name}: {', '.join(p.name for p in folder.glob('*'))}")
    return verdict
