"""`ddviz temptest`: the temperature test. Does an engine stay right and fast as temperature rises?

In:  an `Engine`, embedded or a server, that is or will be ready; prompts; a folder for traces.
Out: Row per check or per setting of a sweep, all figures taken from the traces that the runs left.
Not here: layout (temptest_report.py), whether sampling has the target's distribution (check/losslessness.py).

    greedy     the tree's output equals autoregression, token for token. In a 16-bit dtype the two may part at
               a near-tie, which is told and passes
    T = t      runs to its end, verified by the sampling kernel; accept length and tokens/s
    diversity  the same prompt twice, with other seeds, gives another text
    doctor     every trace is clean
    log        the engine printed nothing that looks like an error, and still answers

Requests go one at a time, prompt by prompt and within a prompt setting by setting, so that a machine that
slows down slows all of them. A short request of each setting goes first and is not counted.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, Protocol

import msgspec

from ddviz.analysis.diff import side_of
from ddviz.analysis.stats import Group, stats
from ddviz.check.doctor import examine, faults
from ddviz.engines.base import BUSY, Engine, GenerateParams, Mode, ModelInfo
from ddviz.errors import BadValueError, EngineError
from ddviz.trace import Trace, load

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Tell a short story about a lighthouse keeper who finds a letter.",
    "Explain in simple words why the sky is blue.",
)
WARM_UP_TOKENS = 8
POLL_S = 0.02
NEAR_TIE = 2.0  # steps of a 16-bit dtype between the two best logits, within which outputs may part
MANTISSA = {"bfloat16": 7, "float16": 10}  # bits; float32 has no excuse
BAD_LINE = re.compile(
    r"Traceback|\b(?:\w*Error|ERROR|CRITICAL|FATAL|\w*Exception)\b|out of memory|\bnan\b|\bKilled\b"
)

Verdict = Literal["PASS", "FAIL", "NOT CHECKED", ""]


@dataclass(slots=True)
class Row:
    """One line of the table."""

    name: str
    verdict: Verdict = ""
    says: str = ""
    temperature: float | None = None
    traces: list[Trace] = field(default_factory=list)

    @property
    def figures(self) -> Group | None:
        return stats(self.traces).all if self.traces else None


class Case(NamedTuple):
    """A setting that runs with every prompt."""

    name: str  # of its traces: NAME-1.ddviz
    mode: Mode
    budget: int
    topk_cap: int
    temperature: float
    repeat: int = 0  # which run of the same


class Reference(Protocol):
    """Where the autoregressive output comes from, if not from the engine itself."""

    def output_ids(self, params: GenerateParams) -> list[int]: ...


@dataclass(slots=True)
class Report:
    model: ModelInfo
    rows: list[Row]
    kind: Literal["test", "sweep"]

    @property
    def is_clean(self) -> bool:
        return all(row.verdict in ("PASS", "") for row in self.rows)


@dataclass(slots=True)
class Bench:
    """What a test runs on: the engine, the prompts, where traces go."""

    engine: Engine
    model: ModelInfo
    prompts: Sequence[str]
    params: GenerateParams  # of every request; prompt, mode, budget, cap, temperature and seed are replaced
    out: Path
    log_file: Path | None = None
    reference: Reference | None = None
    on_progress: Callable[[str, str], None] = lambda sentence, detail: None
    lines: dict[str, None] = field(default_factory=dict)  # of the engine's log, each once

    @property
    def tree(self) -> Mode:
        """Its speculative mode."""
        modes = self.model.modes
        return "ddtree" if "ddtree" in modes else modes[0]

    @property
    def is_seeded(self) -> bool:
        """The embedded engine's runs can be had again; a server draws seeds of its own."""
        return "ar" in self.model.modes and "ddtree" in self.model.modes


def ready(engine: Engine, on_progress: Callable[[str, str], None] = lambda *_: None) -> ModelInfo:
    """Wait for the engine. Raises EngineError where it does not come."""
    while True:
        status = engine.status()
        if status.state in ("failed", "off"):
            raise EngineError(status.message)
        if status.state == "ready" and status.model is not None:
            return status.model
        on_progress(status.message.split("\n")[0], "")
        time.sleep(POLL_S)


def require_empty(out: Path) -> None:
    """Raises BadValueError for a folder that holds traces already: they would be mistaken for this test's."""
    if out.is_file() or (out.is_dir() and any(out.glob("*.ddviz"))):
        raise BadValueError(f"{out}: holds traces already, or is a file; name a new folder with --out")


def temptest(bench: Bench, temperatures: Sequence[float]) -> Report:
    """All checks. Raises EngineError where the engine dies, DdvizError where it refuses a request."""
    budget, cap, tree = bench.params.budget, bench.params.topk_cap, bench.tree
    has_ar = "ar" in bench.model.modes
    cases = [Case("greedy-ar", "ar", budget, cap, 0.0)] if has_ar else []
    cases.append(Case("greedy", tree, budget, cap, 0.0))
    for t in temperatures:
        cases += [
            Case(f"t{t:g}", tree, budget, cap, t),
            Case(f"t{t:g}-again", tree, budget, cap, t, repeat=1),
        ]
    ran = run(bench, cases)
    greedy = ran["greedy"]
    rows = [Row("autoregression", temperature=0.0, traces=ran["greedy-ar"])] if has_ar else []
    rows.append(greedy_row(bench, greedy, ran.get("greedy-ar")))
    rows += [sampled_row(t, ran[f"t{t:g}"] + ran[f"t{t:g}-again"]) for t in temperatures]
    rows += [diversity_row(t, ran[f"t{t:g}"], ran[f"t{t:g}-again"]) for t in temperatures]
    return Report(bench.model, rows + health_rows(bench, ran), "test")


def sweep(bench: Bench, temperatures: Sequence[float], budgets: Sequence[int], caps: Sequence[int]) -> Report:
    """Accept length and tokens/s of every budget with every cap at every temperature."""
    cases = []
    for t in temperatures:
        if "ar" in bench.model.modes:
            cases.append(Case(f"t{t:g}-ar", "ar", 1, 1, t))
        cases += [Case(f"t{t:g}-{b}-{c}", bench.tree, b, c, t) for b in budgets for c in caps]
    ran = run(bench, cases)
    rows = [
        Row(case.name.partition("-")[2], temperature=case.temperature, traces=ran[case.name])
        for case in cases
    ]
    return Report(bench.model, rows + health_rows(bench, ran), "sweep")


# -------------------------------------------------------------------- running


def run(bench: Bench, cases: Sequence[Case]) -> dict[str, list[Trace]]:
    """Every case with every prompt: traces by the case's name."""
    _require_room(bench, cases)
    with TemporaryDirectory() as folder:
        for case in cases:
            bench.on_progress("Warming up", case.name)
            if case.repeat == 0:
                request = _request(bench, case, 0)
                short = msgspec.structs.replace(
                    request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens)
                )
                _run_one(bench, short, Path(folder) / f"{case.name}.ddviz")
    traces: dict[str, list[Trace]] = {case.name: [] for case in cases}
    for place in range(len(bench.prompts)):
        for case in cases:
            bench.on_progress("Running", f"{case.name}, prompt {place + 1} of {len(bench.prompts)}")
            path = bench.out / f"{case.name}-{place + 1}.ddviz"
            traces[case.name].append(_run_one(bench, _request(bench, case, place), path))
    return traces


def _require_room(bench: Bench, cases: Sequence[Case]) -> None:
    model = bench.model
    for case in cases:
        budget, cap = case.budget, case.topk_cap
        most = model.max_topk_cap
        if case.mode == "ddtree" and (
            budget > model.max_budget or (most is not None and min(cap or budget, budget) > most)
        ):
            raise BadValueError(
                f"budget {budget}, cap {cap}: this engine takes a budget of {model.max_budget} and a cap of "
                f"{most if most is not None else budget} at most"
            )


def _request(bench: Bench, case: Case, place: int) -> GenerateParams:
    seed = bench.params.seed
    if not bench.is_seeded:
        seed = None
    elif seed is not None:
        seed += place + case.repeat * len(bench.prompts)
    return msgspec.structs.replace(
        bench.params,
        prompt=bench.prompts[place],
        mode=case.mode,
        budget=case.budget,
        topk_cap=case.topk_cap,
        temperature=case.temperature,
        seed=seed,
    )


def _run_one(bench: Bench, params: GenerateParams, path: Path) -> Trace:
    engine = bench.engine
    engine.generate(params, path)
    while (status := engine.status()).state in BUSY:
        time.sleep(POLL_S)
    bench.lines |= dict.fromkeys(engine.log())
    if status.state in ("failed", "off"):
        raise EngineError(status.message)
    if status.error:
        raise EngineError(f"{path.stem}: {status.error}")
    return load(path)


# -------------------------------------------------------------------- checks


def greedy_row(bench: Bench, greedy: Sequence[Trace], own: Sequence[Trace] | None) -> Row:
    """Against autoregression: the engine's own, or that of a reference."""
    row = Row("greedy", temperature=0.0, traces=list(greedy))
    if own is not None:
        expected = [trace.output_ids for trace in own]
    elif bench.reference is not None:
        base = msgspec.structs.replace(bench.params, temperature=0.0)
        expected = [
            bench.reference.output_ids(msgspec.structs.replace(base, prompt=prompt))
            for prompt in bench.prompts
        ]
    else:
        row.verdict = "NOT CHECKED"
        row.says = (
            "this server has no autoregressive mode; name one that does not speculate with --reference URL"
        )
        return row
    partings = [parting(trace, ids) for trace, ids in zip(greedy, expected, strict=True)]
    equal = sum(found is None for found in partings)
    row.says = f"{equal} of {len(greedy)} equal autoregression"
    parted = [(trace, found) for trace, found in zip(greedy, partings, strict=True) if found is not None]
    excused = [found.is_near_tie(dtype_of(trace, bench.model)) for trace, found in parted]
    row.verdict = "PASS" if all(excused) else "FAIL"
    if parted:
        trace, found = parted[excused.index(False) if not all(excused) else 0]
        ties = f"{sum(excused)} part at near-ties" if any(excused) else ""
        row.says += "; " + "; ".join(filter(None, [ties, f"{trace.name} parts at {found.sentence}"]))
    return row


def dtype_of(trace: Trace, model: ModelInfo) -> str:
    """In which it was computed, as the trace says or else the engine: either may know it as "auto" alone."""
    said = trace.header.engine.options.get("dtype")
    return model.dtype if said in (None, "auto") else str(said)


class Parting(NamedTuple):
    """Where a greedy output leaves the expected one."""

    position: int  # of the output, 0 = prefill token
    margin: float | None  # best raw logit - second, of the row that decided
    top_logit: float | None

    @property
    def sentence(self) -> str:
        gap = "" if self.margin is None else f", where the two best logits are {self.margin:.3g} apart"
        return f"token {self.position}{gap}"

    def is_near_tie(self, dtype: str) -> bool:
        bits = next((bits for name, bits in MANTISSA.items() if name in dtype), None)
        if bits is None or self.margin is None or not self.top_logit:
            return False
        spacing = 2.0 ** (math.floor(math.log2(abs(self.top_logit))) - bits)
        return self.margin <= NEAR_TIE * spacing


def parting(trace: Trace, expected: Sequence[int]) -> Parting | None:
    """None where the outputs are equal."""
    output = trace.output_ids
    if output == list(expected):
        return None
    shorter = min(len(output), len(expected))
    position = next((i for i in range(shorter) if output[i] != expected[i]), shorter)
    place = side_of(trace).step_at(position)
    if place is None:
        return Parting(position, None, None)
    step, start = trace.steps[place], side_of(trace).starts[place]
    path = step.local_path
    if step.target is None or not 0 <= position - start < len(path):
        return Parting(position, None, None)
    node, raw = path[position - start], step.target.raw
    best, total = raw.top_probs[node][0], raw.logsumexp[node]
    top_logit = total + math.log(best) if best and total is not None else None
    return Parting(position, step.target.margin[node], top_logit)


def sampled_row(temperature: float, traces: list[Trace]) -> Row:
    row = Row(f"T = {temperature:g}", "PASS", temperature=temperature, traces=traces)
    kernel = "greedy" if temperature == 0 else "sampled"
    wrong = [trace.name for trace in traces if any(step.accept.kernel != kernel for step in trace.steps)]
    ended = [trace.name for trace in traces if trace.end is None or trace.end.finish_reason == "error"]
    if wrong:
        row.verdict, row.says = "FAIL", f"{wrong[0]}: verified by another kernel than the {kernel} one"
    elif ended:
        row.verdict, row.says = "FAIL", f"{ended[0]}: did not run to its end"
    else:
        row.says = f"{len(traces)} runs, verified by the {kernel} kernel"
    return row


def diversity_row(temperature: float, once: Sequence[Trace], again: Sequence[Trace]) -> Row:
    """At a high temperature equal texts are no accident; one pair that differs is enough."""
    row = Row(f"diversity, T = {temperature:g}")
    differ = sum(a.output_ids != b.output_ids for a, b in zip(once, again, strict=True))
    wanted = temperature > 0
    row.verdict = "PASS" if bool(differ) == wanted else "FAIL"
    row.says = f"{differ} of {len(once)} prompts differ the second time"
    return row


def health_rows(bench: Bench, ran: dict[str, list[Trace]]) -> list[Row]:
    return [doctor_row([trace for traces in ran.values() for trace in traces]), log_row(bench)]


def doctor_row(traces: Sequence[Trace]) -> Row:
    found = [(trace.name, findings) for trace in traces if (findings := faults(examine(trace)))]
    row = Row(
        "doctor", "FAIL" if found else "PASS", f"{len(traces) - len(found)} of {len(traces)} traces clean"
    )
    if found:
        name, findings = found[0]
        row.says += f"; {name}: {findings[0].rule}: {findings[0].message}"
    return row


def log_row(bench: Bench) -> Row:
    """The engine's own lines, as far as it hands them out, and those of --log."""
    lines = [*bench.lines, *_lines_of(bench.log_file)]
    bad = [line for line in lines if BAD_LINE.search(line)]
    state = bench.engine.status().state
    row = Row("log", "PASS", f"nothing like an error in {len(lines)} lines; the engine is {state}")
    if bad:
        row.verdict, row.says = "FAIL", f"{len(bad)} lines, the first: {bad[0].strip()[:200]}"
    elif state != "ready":
        row.verdict, row.says = "FAIL", f"the engine is {state}"
    elif not bench.is_seeded and bench.log_file is None:
        row.verdict, row.says = "NOT CHECKED", "the server's log is elsewhere; name it with --log FILE"
    return row


def _lines_of(path: Path | None) -> Iterator[str]:
    if path is None:
        return
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise BadValueError(f"{path}: can't read the log ({error.strerror})") from None


class ServerReference:
    """An SGLang server that does not speculate."""

    def __init__(self, url: str) -> None:
        from ddviz.engines.sglang_server.api import Api
        from ddviz.engines.sglang_server.asking import facts_of

        self._api = Api(url)
        facts = facts_of(self._api.server_info())
        if facts.algorithm is not None:
            raise BadValueError(
                f"--reference {url}: runs {facts.algorithm}; start one without --speculative-algorithm"
            )

    def output_ids(self, params: GenerateParams) -> list[int]:
        prompt = self._api.prompt(params.prompt, params.chat)
        sampling = {"temperature": 0.0, "max_new_tokens": params.max_new_tokens}
        return list(self._api.generate({"sampling_params": sampling, **prompt})["output_ids"])
