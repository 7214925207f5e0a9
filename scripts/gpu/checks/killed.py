"""A server killed with SIGKILL while it generates: all steps older than the last flush are readable.

Once all its processes are killed, the writers of traces among them, and once the scheduler alone.
"""

import contextlib
import threading
import time
from typing import Any

import psutil

from ddviz.trace import load
from scripts.gpu.checks import Context, Engines, Verdict
from scripts.gpu.lab import EngineProcess

NEEDS = ("killed", "killed-scheduler")
FLUSH_S = 0.2
REQUESTS = 8
GENERATES_S = 1.0  # before the kill
LIMIT_S = 60


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    for name in NEEDS:
        _one(verdict, engines[name], context.prompts[:REQUESTS], whole=name == "killed")
    return verdict


def _one(verdict: Verdict, engine: EngineProcess, prompts: list[list[int]], whole: bool) -> None:
    engine.generate(prompts, {"temperature": 1.0, "max_new_tokens": 8})  # compiles
    before = len(engine.steps())

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # it dies, and must
            engine.generate(prompts, {"temperature": 1.0, "max_new_tokens": 1500, "ignore_eos": True})

    threading.Thread(target=ask, daemon=True).start()
    deadline = time.monotonic() + LIMIT_S
    while (taken := engine.steps()[before:]) == [] or taken[-1]["at"] - taken[0]["at"] < GENERATES_S:
        if time.monotonic() > deadline:
            verdict.failures.append(f"{engine.name}: no steps to be killed in")
            return
        time.sleep(0.01)
    killed_at = time.time()
    _kill(engine, whole)
    time.sleep(1.0)
    _compare(verdict, engine, engine.steps()[before:], killed_at)


def _kill(engine: EngineProcess, whole: bool) -> None:
    """All processes of the engine, or its scheduler alone."""
    family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            if whole or " ".join(process.cmdline()).startswith("sglang::scheduler"):
                process.kill()


def _compare(verdict: Verdict, engine: EngineProcess, steps: list[dict[str, Any]], killed_at: float) -> None:
    """What the traces hold against the steps that the scheduler had taken."""
    traces = {trace.header.request_id: trace for trace in map(load, engine.trace_files())}
    due = late = missing = 0
    for rid in {rid for step in steps for rid in step["accept_lens"]}:
        own = [step for step in steps if rid in step["accept_lens"]]
        lens = [step["accept_lens"][rid] for step in own]
        recorded = [step.accept.num_accepted + 1 for step in traces[rid].steps] if rid in traces else []
        flushed = sum(step["at"] <= killed_at - FLUSH_S for step in own)
        due += flushed
        late += max(0, len(recorded) - flushed)
        missing += max(0, flushed - len(recorded))
        same = min(len(lens), len(recorded))
        verdict.claim(recorded[:same] == lens[:same], f"{engine.name}: {rid} has other steps than were taken")
    verdict.figures.append(
        f"{engine.name}: {sum(len(step['accept_lens']) for step in steps)} steps of {REQUESTS} requests; "
        f"of {due} older than {FLUSH_S} s {due - missing} readable, and {late} younger ones"
    )
    verdict.claim(due > REQUESTS and missing == 0, f"{engine.name}: {missing} of {due} steps are lost")
