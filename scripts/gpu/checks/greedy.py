"""Greedy DDTREE says what autoregression says: float32 token for token, bf16 up to near-ties."""

from scripts.gpu.checks import Context, Engines, Verdict
from scripts.gpu.lab import Answer, EngineProcess

NEEDS = ("ar", "tree", "wide", "ar-bf16", "tree-bf16")
TOKENS = 128
NEAR_TIE = 0.25  # bf16 logits between 16 and 32 are an eighth apart: two steps


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    params = {"temperature": 0, "max_new_tokens": TOKENS}
    for reference, names, tie in (("ar", ("tree", "wide"), 0.0), ("ar-bf16", ("tree-bf16",), NEAR_TIE)):
        wanted = engines[reference].generate(context.prompts, params)
        for name in names:
            got = engines[name].generate(context.prompts, params)
            differing = [
                i for i, (a, b) in enumerate(zip(wanted, got, strict=True)) if a.output_ids != b.output_ids
            ]
            tokens = sum(len(a.output_ids) for a in got)
            verdict.figures.append(
                f"{name} = {reference} on {len(got) - len(differing)} of {len(got)} prompts, {tokens} tokens"
            )
            for i in differing:
                at, gap = first_difference(engines[reference], context.prompts[i], wanted[i], got[i])
                verdict.figures.append(f"  {name}, prompt {i}: first at token {at}, logit gap {gap:.2g}")
                verdict.claim(
                    gap <= tie, f"{name}, prompt {i} differs at token {at} where the gap is {gap:.2g}"
                )
    return verdict


def first_difference(
    engine: EngineProcess, prompt: list[int], wanted: Answer, got: Answer
) -> tuple[int, float]:
    """Where two outputs part, and by how much the reference's best logit leads its second there."""
    pairs = zip(wanted.output_ids, got.output_ids, strict=False)
    at = next(
        (i for i, (a, b) in enumerate(pairs) if a != b), min(len(wanted.output_ids), len(got.output_ids))
    )
    prefix = prompt + wanted.output_ids[:at]
    answer = engine.generate(
        [prefix], {"temperature": 0, "max_new_tokens": 1}, return_logprob=True, top_logprobs_num=2
    )[0]
    best, second = answer.meta["output_top_logprobs"][0][:2]
    return at, best[0] - second[0]
