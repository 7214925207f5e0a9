"""Traces of SGLang's own algorithms: DFLASH's chain, NGRAM's and EAGLE's trees, greedy and sampled.

Every request has a whole trace, the doctor is silent, the trace's sums are SGLang's own counters and its
output is the answer's. The EAGLE drafter is fitted here, so the engines are started here.
"""

import tempfile
import time
from pathlib import Path

from scripts.gpu import checks, linear_eagle
from scripts.gpu.checks import Context, Engines, Verdict, accept_length
from scripts.gpu.checks.traced import WRITER_BEHIND_S, judge_traces
from scripts.gpu.lab import EngineProcess, Lab

NEEDS = ()
NAMES = ("dflash-traced", "ngram-traced", "eagle-traced", "eagle-chain-traced", "eagle-sync-traced")
TOKENS = 96
# SGLang fills an NGRAM draft that is not full with token 0, every copy a child of the root. A sampled step
# then counts the probability of token 0 once a copy; the doctor says so, and is right.
KNOWN = {"ngram-traced": "sibling-tokens"}
RUNS = {"greedy": (0.0,), "sampled": (0.6, 1.0)}  # temperatures


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder, Lab(context.target, context.draft, context.out) as lab:
        begun = time.monotonic()
        eagle = linear_eagle.make(context.target, context.prompts, Path(folder) / "eagle")
        verdict.figures.append(f"EAGLE drafter fitted in {time.monotonic() - begun:.0f} s")
        for name in NAMES:
            own = {"speculative_draft_model_path": str(eagle)} if name.startswith("eagle") else {}
            engine = lab.start(name, **checks.ENGINES[name], **own)
            engines = {**engines, name: engine}
        lab.wait()
        for name in NAMES:
            try:
                _one(verdict, engines[name], context)
            except RuntimeError as error:  # it did not start, or died: the others are judged all the same
                verdict.failures.append(f"{name}: {error}")
    return verdict


def _one(verdict: Verdict, engine: EngineProcess, context: Context) -> None:
    engine.generate(context.prompts[:2], {"temperature": 0, "max_new_tokens": 8})  # compiles
    for title, temperatures in RUNS.items():
        params = [
            {"temperature": temperatures[i % len(temperatures)], "max_new_tokens": TOKENS}
            for i in range(len(context.prompts))
        ]
        answers = engine.generate(context.prompts, params)
        time.sleep(WRITER_BEHIND_S)
        steps = judge_traces(verdict, f"{engine.name}, {title}", engine, answers, KNOWN.get(engine.name))
        kernels = {step.accept.kernel for step in steps}
        verdict.figures.append(
            f"  kernels {', '.join(sorted(kernels))}; accept length {accept_length(steps):.2f}; "
            f"widest node {max((_children(step.tree.parents) for step in steps), default=0)} children; "
            f"{sum(step.tree.scores is not None for step in steps)} steps with scores, "
            f"{sum(step.mask is not None for step in steps)} with a mask, "
            f"{sum(step.batch.mode == 'graph' for step in steps if step.batch)} in a graph"
        )
        accepted = any(step.accept.num_accepted for step in steps)
        verdict.claim(accepted, f"{engine.name}, {title}: nothing was accepted, so nothing was tested")


def _children(parents: list[int]) -> int:
    return max((parents.count(node) for node in range(len(parents))), default=0)
