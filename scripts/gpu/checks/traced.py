"""Traces of a server: every step of every request is there, the doctor is silent, and what tracing costs.

The same prompts, greedy and sampled in one batch, through an engine that traces all; each request's trace
must end in what the client was given. The cost of tracing is measured within one engine, by requests that ask
for it and requests that do not; that of being able to trace, against an engine that cannot.
"""

import statistics
import time

from ddviz.check.doctor import examine, faults
from ddviz.trace import load, schema
from scripts.gpu.checks import Context, Engines, Verdict
from scripts.gpu.lab import Answer, EngineProcess

NEEDS = ("traced", "traceable", "tree-bf16")
TOKENS = 128
TIMED_TOKENS = 384
ROUNDS = {1: 48, 16: 24}  # by batch size; short ones, for the host's pace drifts
LEVELS = {"standard": "standard", "off": "off", "none": "off"}  # who is asked, and at which level
BASE = {"standard": "off", "off": "none"}  # with whom its cost is compared
MOST_COST = {  # share of tokens/s by batch size
    "standard": {1: 0.05, 16: 0.08},
    "off": {1: 0.005, 16: 0.005},
}
WRITER_BEHIND_S = 2  # the writers' processes are behind by less
COUNTERS = ("spec_verify_ct", "spec_num_correct_drafts")  # of SGLang's meta_info


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    temperatures = (0, 0.6, 1.0)
    params = [
        {"temperature": temperatures[i % 3], "max_new_tokens": TOKENS} for i in range(len(context.prompts))
    ]
    answers = engines["traced"].generate(context.prompts, params)
    time.sleep(WRITER_BEHIND_S)
    judge_traces(verdict, "traced", engines["traced"], answers)
    _costs(verdict, engines, context)
    return verdict


def judge_traces(
    verdict: Verdict, title: str, engine: EngineProcess, answers: list[Answer], known: str | None = None
) -> list[schema.Step]:
    """Every answer's trace is whole, clean, and says what the client and SGLang's counters say; its steps.

    known  a rule whose findings are the algorithm's own way: they are counted and do not fail
    """
    traces = {trace.header.request_id: trace for trace in map(load, engine.trace_files())}
    steps: list[schema.Step] = []
    found = dropped = own_way = 0
    for answer in answers:
        trace, name = traces.get(answer.meta["id"]), f"{title}: {answer.meta['id']}"
        if trace is None or trace.end is None:
            verdict.failures.append(f"{name} left no whole trace")
            continue
        findings, own = faults(examine(trace)), list(trace.steps)
        steps += own
        own_way += sum(finding.rule == known for finding in findings)
        findings = [finding for finding in findings if finding.rule != known]
        found += len(findings)
        dropped += sum(event.last - event.first + 1 for event in trace.dropped)
        verdict.claim(trace.end.output_ids == answer.output_ids, f"{name}: the trace has another output")
        for finding in findings[:3]:
            verdict.failures.append(f"{name}: {finding}")
        sums = (len(own), sum(step.accept.num_accepted for step in own))
        counters = tuple(int(answer.meta.get(key) or 0) for key in COUNTERS)
        verdict.claim(
            bool(trace.dropped) or sums == counters,
            f"{name}: (steps, accepted) = {sums}, SGLang counted {counters}",
        )
    size = sum(path.stat().st_size for path in engine.trace_files())
    verdict.figures.append(
        f"{title}: {len(answers)} answers, {len(steps)} steps, {found} findings, {dropped} dropped; "
        f"{len(traces)} traces of {size / 1e6:.1f} MB" + (f"; {known}: {own_way} findings" if known else "")
    )
    return steps


def _costs(verdict: Verdict, engines: Engines, context: Context) -> None:
    """Tokens/s against the base in the same round; each is first in turn."""
    asked = {
        "standard": engines["traceable"],
        "off": engines["traceable"],
        "none": engines["tree-bf16"],
    }
    names = list(asked)
    for batch in MOST_COST["standard"]:
        prompts = context.prompts[:batch]
        rounds: list[dict[str, float]] = []
        for turn in range(ROUNDS[batch] + 1):
            order = [names[(turn + i) % len(names)] for i in range(len(names))]
            rounds.append({n: _rate(asked[n], prompts, LEVELS[n], together=batch > 1) for n in order})
        rounds = rounds[1:]  # the first one warms up
        plain = statistics.median(rates["none"] for rates in rounds)
        verdict.figures.append(f"batch {batch}: {plain:.0f} tokens/s of an engine that cannot trace")
        for name, base in BASE.items():
            costs = sorted(1 - rates[name] / rates[base] for rates in rounds)
            cost, quarter, most = statistics.median(costs), len(costs) // 4, MOST_COST[name][batch]
            verdict.figures.append(
                f"batch {batch}: tracing {name} against {base} costs {cost:+.1%}, half of {len(costs)} "
                f"rounds within {costs[quarter]:+.1%} to {costs[-1 - quarter]:+.1%}; aim {most:.1%}"
            )
            # rounds differ by more than half a percent: that aim is missed where three in four say so
            missed = costs[quarter] > most if name == "off" else cost > most
            verdict.claim(not missed, f"batch {batch}: tracing {name} costs {cost:.1%}")


def _rate(engine: EngineProcess, prompts: list[list[int]], level: str, together: bool) -> float:
    params = {
        "temperature": 0,
        "max_new_tokens": TIMED_TOKENS,
        "ignore_eos": True,
        "custom_params": {"ddviz": {"level": level}},
    }
    begun = time.monotonic()
    answers = engine.generate(prompts, params, together=together)
    return sum(len(a.output_ids) for a in answers) / (time.monotonic() - begun)
