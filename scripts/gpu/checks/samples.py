"""Samples for traces/: what the engines that trace record of a few requests, copied to OUT/samples.

Whole and clean, or the check fails; traces/README.md says what each shows.
"""

import shutil
import time

from transformers import AutoTokenizer

from ddviz.check.doctor import examine, faults
from ddviz.trace import load
from scripts.gpu.checks import Context, Engines, Verdict
from scripts.gpu.checks.traced import WRITER_BEHIND_S
from scripts.gpu.lab import EngineProcess

NEEDS = ("traced", "wide-traced", "ngram-traced", "dflash-traced")
QUICKSORT = "Write a Python implementation of quicksort with comments."
ASKED = (
    "Name a random animal and a color.",
    "Count from one to twenty.",
    "Write a haiku about rain.",
    QUICKSORT,
    "What is the capital of France?",
    "Explain recursion to a child.",
    "List five uses of a brick.",
    "Translate 'good morning' into Spanish.",
)
TOKENS = 128
SAMPLES = [  # file, engine, temperature
    *((f"sglang-16-4-{title}", "traced", t) for title, t in (("greedy", 0.0), ("t0.6", 0.6), ("t1.0", 1.0))),
    *(
        (f"sglang-64-{title}", "wide-traced", t)
        for title, t in (("greedy", 0.0), ("t0.6", 0.6), ("t1.0", 1.0))
    ),
    ("sglang-ngram", "ngram-traced", 0.0),
    ("sglang-dflash", "dflash-traced", 0.0),
]


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    tokenizer = AutoTokenizer.from_pretrained(context.target)

    def prompt(text: str) -> list[int]:
        said = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        return tokenizer(said, add_special_tokens=False)["input_ids"]

    for name, engine, temperature in SAMPLES:
        _record(verdict, context, engines[engine], [prompt(QUICKSORT)], temperature, [name])
    rows = [f"sglang-batch/{i}" for i in range(len(ASKED))]
    _record(verdict, context, engines["traced"], [prompt(text) for text in ASKED], 0.6, rows)
    return verdict


def _record(
    verdict: Verdict,
    context: Context,
    engine: EngineProcess,
    prompts: list[list[int]],
    temperature: float,
    names: list[str],
) -> None:
    params = {"temperature": temperature, "max_new_tokens": TOKENS}
    answers = engine.generate(prompts, params)
    time.sleep(WRITER_BEHIND_S)
    assert engine.traces is not None
    files = {load(path).header.request_id: path for path in engine.traces.glob("*.ddviz")}
    for name, answer in zip(names, answers, strict=True):
        path = context.out / "samples" / f"{name}.ddviz"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[answer.meta["id"]], path)
        trace = load(path)
        findings, steps = faults(examine(trace)), list(trace.steps)
        accepted = sum(step.accept.num_accepted for step in steps)
        verdict.figures.append(
            f"{name}: {len(steps)} steps, accept length {1 + accepted / max(1, len(steps)):.2f}, "
            f"{path.stat().st_size / 1e3:.0f} kB, {len(findings)} findings"
        )
        verdict.claim(trace.end is not None and len(steps) > 0, f"{name} is not whole")
        verdict.failures += [f"{name}: {finding}" for finding in findings[:3]]
