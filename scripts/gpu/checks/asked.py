"""What a request may ask: honoured, or refused with a sentence; never ignored."""

import json
from collections import Counter
from typing import Any

from scripts.gpu.checks import Context, Engines, Verdict, refusal, same_outputs
from scripts.gpu.lab import Answer

Prompts = list[list[int]]

NEEDS = ("ar-asked", "tree-asked")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    prompts = context.prompts[:10]
    plain = {"temperature": 0, "max_new_tokens": 64}
    said = engines["tree-asked"].generate(prompts, plain)
    common, _ = Counter(token for answer in said for token in answer.output_ids).most_common(1)[0]

    _equal(
        verdict, engines, prompts, "logit_bias", {**plain, "logit_bias": {str(common): -100.0}}, never=common
    )
    longer = {"temperature": 0, "max_new_tokens": 160}
    _equal(verdict, engines, prompts, "min_new_tokens", {**longer, "min_new_tokens": 100}, least=100)
    for penalty in (
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.8},
        {"presence_penalty": 1.2},
        {"repetition_penalty": 1.1, "frequency_penalty": 0.4, "presence_penalty": 0.5},
    ):
        name = ", ".join(f"{key} {value}" for key, value in penalty.items())
        _equal(verdict, engines, prompts, name, {**longer, **penalty}, differs=said)
    _processor(verdict, engines, prompts, plain, common)
    _grammar(verdict, engines, prompts)
    for params, word in (
        ({"temperature": 1.0, "min_p": 0.1}, "min_p"),
        ({"temperature": 1.0, "sampling_seed": 3}, "sampling_seed"),
        ({"custom_params": {"ddtree": {"budget": 17}}}, "budget"),
        ({"custom_params": {"ddtree": {"budget": 0}}}, "budget"),
        ({"custom_params": {"ddtree": {"topk_cap": 5}}}, "topk_cap"),
        ({"custom_params": {"ddtree": {"width": 5}}}, "width"),
    ):
        sentence = refusal(engines["tree-asked"], prompts[0], {"max_new_tokens": 4, **params})
        verdict.figures.append(f"refused: {sentence}")
        verdict.claim(sentence is not None and word in sentence, f"{params} was not refused: {sentence}")
    return verdict


def _equal(
    verdict: Verdict,
    engines: Engines,
    prompts: Prompts,
    what: str,
    params: dict[str, Any],
    never: int | None = None,
    least: int = 0,
    differs: list[Answer] | None = None,
) -> None:
    """As autoregression; and, so that this shows something, not what is said without asking.

    never    a token that no output may have
    least    tokens of the shortest output
    differs  what is said without asking, from which most outputs must differ
    """
    wanted, got = (engines[name].generate(prompts, params) for name in NEEDS)
    same = same_outputs(wanted, got)
    verdict.figures.append(f"{what}: {same} of {len(prompts)} as autoregression")
    verdict.claim(same == len(prompts), f"{what}: not all as autoregression")
    verdict.claim(all(never not in a.output_ids for a in got), f"{what}: a forbidden token was said")
    verdict.claim(all(len(a.output_ids) >= least for a in got), f"{what}: an output is shorter than {least}")
    if differs is not None:
        changed = sum(
            a.output_ids != b.output_ids[: len(a.output_ids)] for a, b in zip(differs, got, strict=True)
        )
        verdict.claim(changed > len(prompts) // 2, f"{what}: changed {changed} outputs only")


def _processor(
    verdict: Verdict, engines: Engines, prompts: Prompts, plain: dict[str, Any], token: int
) -> None:
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    params = {**plain, "custom_params": {"token_ids": [token]}}
    more = {"custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()}
    wanted, got = (engines[name].generate(prompts, params, **more) for name in NEEDS)
    same = same_outputs(wanted, got)
    verdict.figures.append(f"custom logit processor: {same} of {len(prompts)} as autoregression")
    verdict.claim(same == len(prompts), "custom logit processor: not all as autoregression")
    verdict.claim(all(token not in a.output_ids for a in got), "a disallowed token was said")


def _grammar(verdict: Verdict, engines: Engines, prompts: Prompts) -> None:
    for temperature in (0, 1.0):
        params = {"temperature": temperature, "max_new_tokens": 96, "json_schema": json.dumps(SCHEMA)}
        wanted, got = (engines[name].generate(prompts, params) for name in NEEDS)
        finished = [a for a in got if a.finish["type"] == "stop"]
        valid = 0
        for answer in finished:
            value = json.loads(answer.text)
            valid += set(value) == {"name", "age"} and isinstance(value["age"], int)
        verdict.figures.append(
            f"JSON schema, T = {temperature}: {valid} of {len(finished)} finished outputs are valid"
        )
        verdict.claim(valid == len(finished) > 0, "an output breaks its schema")
        if temperature == 0:
            same = same_outputs(wanted, got)
            verdict.figures.append(f"JSON schema: {same} of {len(prompts)} as autoregression")
            verdict.claim(same == len(prompts), "JSON schema: not all as autoregression")
