"""Samples for traces/: what the engines that trace record of a few requests, copied to OUT/samples.

Whole and clean, or the check fails; traces/README.md says what each shows.
"""

import shutil
import time

from ddviz.check.doctor import examine, faults
from ddviz.trace import load
from scripts.gpu.checks import Context, Engines, Verdict, accept_length
from scripts.gpu.checks.traced import WRITER_BEHIND_S
from scripts.gpu.lab import EngineProcess, questions

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
    for name, engine, temperature in SAMPLES:
        _record(
            verdict, context, engines[engine], questions([QUICKSORT], context.target), temperature, [name]
        )
    rows = [f"sglang-batch/{i}" for i in range(len(ASKED))]
    _record(verdict, context, engines["traced"], questions(ASKED, context.target), 0.6, rows)
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
    files = {load(path).header.request_id: path for path in engine.trace_files()}
    for name, answer in zip(names, answers, strict=True):
        path = context.out / "samples" / f"{name}.ddviz"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[answer.meta["id"]], path)
        trace = load(path)
        findings, steps = faults(examine(trace)), list(trace.steps)
        verdict.figures.append(
            f"{name}: {len(steps)} steps, accept length {accept_length(steps):.2f}, "
            f"{path.stat().st_size / 1e3:.0f} kB, {len(findings)} findings"
        )
        verdict.claim(trace.end is not None and len(steps) > 0, f"{name} is not whole")
        verdict.failures += [f"{name}: {finding}" for finding in findings[:3]]
