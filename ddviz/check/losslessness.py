"""Does an engine sample from its target? A step against its exact law, generations against a reference.

In:  a loaded TorchEngine, or an SGLang server's address; request parameters.
Out: rows as data: what was compared, G, p, what bias it would have caught; a report.
Not here: a step and its draws (one_step.py), the test (gtest.py), who is asked (samplers.py).

    acceptance   one real step, its rows reduced to some fifty tokens, so that what it may emit can be
                 enumerated: the exact law against many draws of tree/accept.py, and of the engine's own
                 verify stage
    token 1..3   of N generations, speculative against a reference. Token 1 comes from prefill; 2 and 3 are
                 what the tree made. What rounding alone does in a 16-bit dtype is allowed for
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from ddviz.check.gtest import NOTHING, POWER, GTest, against_law, of_two
from ddviz.check.law import Law
from ddviz.check.one_step import (
    SmallStep,
    against_the_law,
    draws_of_engine,
    draws_of_twin,
    law_of,
    probs_of,
    small_step,
)
from ddviz.check.samplers import TOKENS, EmbeddedSampler, OnProgress, ServerSampler, TargetLaw
from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.errors import BadValueError
from ddviz.tree import is_greedy

ALARM = 1e-4  # false alarms a row
LEAST_OF_PREFIX = 100  # generations that share a prefix, for it to be held against a law

# Nats between two right engines at T = 1, by rounding: docs/losslessness.md has the measurement. What a
# server calls "auto" is a 16-bit dtype.
ROUNDING = {"float32": 0.0, "float": 0.0, "float16": 0.003, "half": 0.003}
ROUNDING_OF_OTHERS = 0.03  # bfloat16
SWAPS = "in a 16-bit dtype rounding decides which tokens stay at the limit of top_k or top_p: leave them off"

Verdict = Literal["ok", "DIFFERS", "NOT CHECKED"]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is drawn."""

    draws: int  # of a step's acceptance
    generations: int


QUICK, FULL = Size(10_000, 600), Size(50_000, 4_000)
# Of a full run without settings of its own. `--quick` takes the first.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.6},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report."""

    setting: str
    what: str
    against: str
    test: GTest | None  # None = not checked
    finds: str  # the bias that it finds with probability POWER; or why nothing was checked
    allowed: float = 0.0  # nats

    @property
    def verdict(self) -> Verdict:
        if self.test is None or not self.test.freedom:
            return "NOT CHECKED"
        return "ok" if self.test.p_allowing(self.allowed) > ALARM else "DIFFERS"

    def as_dict(self) -> dict[str, Any]:
        told = {"setting": self.setting, "what": self.what, "against": self.against}
        figures: dict[str, Any] = {}
        if self.test is not None and self.test.freedom:
            g = self.test.g
            figures = {
                "g": g if np.isfinite(g) else None,  # infinite: something came that can't come
                "freedom": self.test.freedom,
                "draws": self.test.draws,
                "p": self.test.p_allowing(self.allowed),
                "allowed_nats": self.allowed,
            }
        return {**told, "verdict": self.verdict, **figures, "finds": self.finds}


def rounding_of(dtype: str, temperature: float = 1.0) -> float:
    """Nats that are allowed for it in this dtype: a logit is divided by the temperature with its error."""
    nats = ROUNDING.get(dtype.removeprefix("torch."), ROUNDING_OF_OTHERS)
    return nats / min(1.0, temperature) ** 2


def settings_for(dtype: str) -> tuple[dict[str, Any], ...]:
    """Those of SETTINGS that can be checked in this dtype, or what stands for them."""
    if not rounding_of(dtype):
        return SETTINGS
    return {"temperature": 1.0}, {"temperature": 0.6}


def setting_name(params: GenerateParams) -> str:
    words = [f"T {params.temperature:g}"]
    words += [f"top_k {params.top_k}"] if params.top_k else []
    words += [f"top_p {params.top_p:g}"] if params.top_p < 1 else []
    for name in ("threshold_single", "threshold_acc"):
        words += [f"{name} {getattr(params, name):g}"] if getattr(params, name) < 1 else []
    return ", ".join(words)


def require_sampled(params: GenerateParams) -> None:
    if is_greedy(params.temperature, params.top_k):
        raise BadValueError(
            "losslessness needs a sampled setting: temperature > 0 and top_k != 1; greedy runs are compared "
            "token for token by: ddviz bench"
        )


# -------------------------------------------------------------------- one step


def acceptance_rows(
    engine: TorchEngine, params: GenerateParams, draws: int, seed: int, on_progress: OnProgress
) -> list[Row]:
    step = small_step(engine, params, seed)
    law = law_of(step)
    finds = _threshold_found(step, law, draws)
    counts = {
        "acceptance of tree/accept.py": draws_of_twin(step, probs_of(step), params, draws, seed),
        f"acceptance of {engine.name}": draws_of_engine(engine, step, draws, on_progress),
    }
    return [
        Row(setting_name(params), what, "the exact law", against_the_law(seen, law), finds)
        for what, seen in counts.items()
    ]


def _threshold_found(step: SmallStep, law: Law, draws: int) -> str:
    """The mildest threshold_acc whose exact law the test tells from the right one."""
    zero = [*law.values(), 0.0]
    needed = against_law(np.array(zero) * draws, zero)
    shift = needed.divergence_found(ALARM) * needed.information
    low, high = 0, 100  # hundredths; the lower, the farther from the law
    while high - low > 1:
        middle = (low + high) // 2
        biased = law_of(step, middle / 100)
        outside = sum(p for emitted, p in biased.items() if emitted not in law)
        counts = np.array([*(biased.get(emitted, 0.0) for emitted in law), outside]) * draws
        low, high = (middle, high) if against_law(counts, zero).g > shift else (low, middle)
    return f"threshold_acc {low / 100:g} or lower" if low else f"{shift / needed.information:.2g} nats"


# -------------------------------------------------------------------- generations


def token_rows(
    setting: str,
    name: str,
    one: Sequence[tuple[int, ...]],
    against: str,
    other: Sequence[tuple[int, ...]],
    allowed: float = 0.0,
) -> list[Row]:
    """Tokens 1, 2 and 3 of two samples, each given the ones before it; after rare prefixes taken together."""
    rows = []
    for place in range(TOKENS):
        mine, theirs = _by_prefix(one, place), _by_prefix(other, place)
        pairs = [(mine.get(prefix, Counter()), theirs.get(prefix, Counter())) for prefix in mine | theirs]
        rare = [pair for pair in pairs if sum(pair, Counter()).total() < LEAST_OF_PREFIX]
        together = tuple(sum((pair[arm] for pair in rare), Counter()) for arm in range(2))
        frequent = [pair for pair in pairs if pair not in rare]
        tests = [of_two(*pair) for pair in [*frequent, together]]
        rows.append(_row(setting, f"token {place + 1} of {name}", against, sum(tests, NOTHING), allowed))
    return rows


def law_rows(
    params: GenerateParams,
    name: str,
    sample: Sequence[tuple[int, ...]],
    law: TargetLaw,
    allowed: float = 0.0,
) -> list[Row]:
    """The same, against the target's own distribution after each prefix that is frequent enough."""
    rows = []
    for place in range(TOKENS):
        tests = []
        for prefix, seen in _by_prefix(sample, place).items():
            if sum(seen.values()) >= LEAST_OF_PREFIX:
                probs = law.probs(prefix, params)
                counts = np.bincount(list(seen.elements()), minlength=len(probs))
                tests.append(against_law(counts, probs))
        what = f"token {place + 1} of {name}"
        rows.append(_row(setting_name(params), what, law.name, sum(tests, NOTHING), allowed))
    return rows


def unchecked_rows(setting: str, name: str, why: str) -> list[Row]:
    return [Row(setting, f"tokens 1 to {TOKENS} of {name}", "no reference", None, why)]


def _row(setting: str, what: str, against: str, test: GTest, allowed: float) -> Row:
    if not test.freedom:
        return Row(setting, what, against, None, "one outcome, or too few draws of each")
    nats = test.divergence_found(ALARM, allowed)
    finds = f"{nats:.2g} nats, as a token of p 0.5 drawn {_drawn(nats)}"
    return Row(setting, what, against, test, finds, allowed)


def _drawn(nats: float) -> str:
    """The probability that a coin has which is so far from a fair one."""
    shift = min(0.5, (nats / 2) ** 0.5)
    return f"{0.5 + shift:.2f}"


def _by_prefix(sample: Sequence[tuple[int, ...]], place: int) -> dict[tuple[int, ...], Counter[int]]:
    groups: dict[tuple[int, ...], Counter[int]] = {}
    for output in sample:
        if len(output) > place:
            groups.setdefault(output[:place], Counter())[output[place]] += 1
    return groups


# -------------------------------------------------------------------- whole checks


OnStage = Callable[[str, str], None]


def check_embedded(
    engine: TorchEngine, settings: Sequence[GenerateParams], size: Size, seed: int, on_stage: OnStage
) -> list[Row]:
    """Acceptance and generations of the embedded engine, in the mode of the settings, against its own ar."""
    rows: list[Row] = []
    for at, params in enumerate(settings):
        name = setting_name(params)
        rows += acceptance_rows(
            engine, params, size.draws, seed, _of(on_stage, f"{name}: acceptance", size.draws)
        )
        samples = []
        for arm, mode in enumerate((params.mode, "ar")):
            sampler = EmbeddedSampler(engine, mode, seed + 1_000_000 * (2 * at + arm + 1))  # seeds never meet
            told = _of(on_stage, f"{name}: {mode}", size.generations)
            samples.append(sampler.draw(size.generations, params, told))
        allowed = rounding_of(engine.describe()["dtype"], params.temperature)
        rows += token_rows(name, params.mode, samples[0], "ar", samples[1], allowed)
    return rows


def check_server(
    server: ServerSampler,
    reference: ServerSampler | TargetLaw | None,
    settings: Sequence[GenerateParams],
    generations: int,
    on_stage: OnStage,
) -> list[Row]:
    """Generations of a server against a reference; without one nothing is checked, and the row says so."""
    rows: list[Row] = []
    for params in settings:
        name, who = setting_name(params), server.facts.algorithm or "the server"
        samplers = [one for one in (server, reference) if isinstance(one, ServerSampler)]
        allowed = max(rounding_of(one.facts.dtype, params.temperature) for one in samplers)
        if reference is None:
            rows += unchecked_rows(name, who, "name one with --reference URL, restart or embedded")
            continue
        if isinstance(reference, ServerSampler) and params.top_k and params.top_p < 1:
            why = (
                "SGLang's own sampler applies top_k and top_p jointly, verify in sequence: embedded can tell"
            )
            rows += unchecked_rows(name, who, why)
            continue
        if allowed and (params.top_k or params.top_p < 1):
            rows += unchecked_rows(name, who, SWAPS)
            continue
        sample = server.draw(generations, params, _of(on_stage, f"{name}: {who}", generations))
        if isinstance(reference, TargetLaw):
            rows += law_rows(params, who, sample, reference, allowed)
        else:
            told = _of(on_stage, f"{name}: reference", generations)
            other = reference.draw(generations, params, told)
            rows += token_rows(name, who, sample, reference.name, other, allowed)
    return rows


def _of(on_stage: OnStage, sentence: str, total: int) -> OnProgress:
    return lambda done: on_stage(sentence, f"{done} of {total}")


# -------------------------------------------------------------------- the report


def exit_code(rows: Sequence[Row]) -> int:
    return int(any(row.verdict != "ok" for row in rows))


def print_report(subject: str, rows: Sequence[Row], as_json: bool = False) -> int:
    """Print the rows. Returns the exit code: 0 where all are ok, else 1."""
    if as_json:
        told = {
            "subject": subject,
            "rows": [row.as_dict() for row in rows],
            "false_alarm_odds": false_alarm_odds(rows),
            "power": POWER,
        }
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return exit_code(rows)
    Console(highlight=False).print(_laid_out(subject, rows), end="", soft_wrap=True)
    return exit_code(rows)


def _laid_out(subject: str, rows: Sequence[Row]) -> Text:
    text = Text().append(f"{subject}\n", "bold")
    for setting in dict.fromkeys(row.setting for row in rows):
        text.append(f"  {setting}\n")
        for row in rows:
            if row.setting == setting:
                text.append(f"    {row.verdict:11}", "green" if row.verdict == "ok" else "red")
                text.append(f" {row.what}, against {row.against}: {_figures(row)}\n")
    odds = false_alarm_odds(rows)
    if odds:
        most = "at most once" if any(row.allowed for row in rows) else "once"
        text.append(f"A right engine gets a row that DIFFERS {most} in {1 / odds:,.0f} such runs.\n", "dim")
    return text


def false_alarm_odds(rows: Sequence[Row]) -> float:
    return ALARM * sum(row.verdict != "NOT CHECKED" for row in rows)


def _figures(row: Row) -> str:
    if row.test is None or not row.test.freedom:
        return row.finds
    test = row.test
    p_value = f"p = {test.p_allowing(row.allowed):.2g}"
    p_value += f" ({row.allowed:g} nats allowed for rounding)" if row.allowed else ""
    return (
        f"G = {test.g:.1f}, {test.freedom} degrees of freedom, {p_value}, "
        f"{test.draws:,} draws; finds {row.finds} ({POWER:.0%} power)"
    )
