"""Servers that do wrong on purpose (DDVIZ_FAULT, ddviz/engines/sglang_plugin/faults.py): what finds each.

Six are named by the doctor. A wrong feature layer leaves a trace that agrees with itself: the audit names it.
"""

import time

from ddviz.check.audit import DRAFT, audit
from ddviz.check.doctor import examine
from ddviz.check.plain import load_plain
from ddviz.trace import Trace, load
from scripts.gpu.checks import Context, Engines, Verdict, accept_length
from scripts.gpu.checks.traced import WRITER_BEHIND_S
from scripts.gpu.lab import EngineProcess

RULES = {  # fault -> the rule that names it
    "chain_mask": "mask",
    "position_by_index": "positions",
    "kv_not_packed": "commit",
    "flat_off_by_one": "accept-index",
    "greedy_kernel_at_temperature": "kernel-choice",
    "biased_coin": "coin-bias",
}
SAMPLED = ("greedy_kernel_at_temperature", "biased_coin")  # the others are asked greedily
NEEDS = ("traced", *(f"fault-{name}" for name in (*RULES, "wrong_feature_layer")))
PROMPTS, TOKENS = 8, 64
LEAST_COINS = 500
AUDITED = range(3)  # steps of a request


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    sound = _traces(engines["traced"], context, 0.0)
    found = {finding.rule for trace in sound for finding in examine(trace) if finding.severity == "fault"}
    verdict.figures.append(f"sound: {_length(sound):.2f} tokens a step, rules {sorted(found) or 'silent'}")
    verdict.claim(not found, f"a sound server breaks {sorted(found)}")
    for name, rule in RULES.items():
        traces = _traces(engines[f"fault-{name}"], context, 0.8 if name in SAMPLED else 0.0)
        found = {finding.rule for trace in traces for finding in examine(trace)}
        said = {trace.header.engine.options.get("fault") for trace in traces}
        verdict.figures.append(f"{name}: {_length(traces):.2f} tokens a step, rules {sorted(found)}")
        verdict.claim(rule in found, f"{name}: rule {rule} is silent")
        verdict.claim(said == {name}, f"{name}: the traces' headers say {said}")
    fed_wrongly = _traces(engines["fault-wrong_feature_layer"], context, 0.0)
    plain = load_plain(sound[0].header, str(context.target), str(context.draft))
    for name, traces, wanted in (("sound", sound, set()), ("wrong_feature_layer", fed_wrongly, {DRAFT})):
        reports = [audit(trace, *plain, steps=AUDITED) for trace in traces]
        rules = {finding.rule for report in reports for finding in report.findings}
        named = sum(bool(report.findings) for report in reports)
        gap = max(report.draft.worst for report in reports if report.draft)
        verdict.figures.append(
            f"{name}: {_length(traces):.2f} tokens a step; the drafter at most {gap:.2g} nats from plain "
            f"forwards, named in {named} of {len(traces)} traces: {sorted(rules) or 'silent'}"
        )
        verdict.claim(rules == wanted, f"{name}: the audit says {sorted(rules)}")
    for engine, least, most in (("traced", 0.45, 0.55), ("fault-biased_coin", 0.28, 0.39)):
        traces = _traces(engines[engine], context, 0.8)
        coins = [c for t in traces for s in t.steps if s.sampling for c in s.sampling.coins if c is not None]
        mean = sum(coins) / max(1, len(coins))
        verdict.figures.append(f"{engine}: mean of {len(coins)} coins {mean:.3f}")
        verdict.claim(
            len(coins) >= LEAST_COINS and least < mean < most, f"{engine}: coins have mean {mean:.3f}"
        )
    return verdict


def _traces(engine: EngineProcess, context: Context, temperature: float) -> list[Trace]:
    params = {"temperature": temperature, "max_new_tokens": TOKENS, "ignore_eos": True}
    answers = engine.generate(context.prompts[:PROMPTS], params)
    time.sleep(WRITER_BEHIND_S)
    asked = {answer.meta["id"] for answer in answers}
    return [trace for trace in map(load, engine.trace_files()) if trace.header.request_id in asked]


def _length(traces: list[Trace]) -> float:
    return accept_length([step for trace in traces for step in trace.steps])
