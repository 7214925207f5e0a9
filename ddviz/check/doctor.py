"""The doctor: examine traces by rules and say what is wrong, where, and where to look.

In:  a trace, a file, or a folder of traces.
Out: findings as data.
Not here: the rules (rules_*.py), laying findings out (report.py), following traces that grow (live.py).
The doctor never fixes anything and runs no model: what needs one is checked by audit.py and losslessness.py.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from ddviz.analysis.batch import Place, Places
from ddviz.check import (
    rules_accept,
    rules_chain,
    rules_draft,
    rules_order,
    rules_run,
    rules_structure,
    rules_target,
)
from ddviz.check.helper import Helpers, cores
from ddviz.check.rules import Fault, Finding, Rule
from ddviz.check.views import FolderView, Outline, Resident, StepView, TraceView, outline_of
from ddviz.errors import DdvizError, TraceError
from ddviz.trace import Trace, load
from ddviz.trace.schema import Header, Step

# By name, in the order of the stages: an early fault explains later ones.
RULES: dict[str, Rule] = {
    rule.name: rule
    for module in (
        *(rules_structure, rules_draft, rules_target, rules_accept),
        *(rules_order, rules_chain, rules_run),
    )
    for rule in vars(module).values()
    if isinstance(rule, Rule)
}
MOST_PER_RULE = 20  # findings of one rule that one trace shows; the rest is counted
LONG = 2_000_000  # bytes of a file from which on other processes help


def examine(trace: Trace, rules: Iterable[str] | None = None) -> list[Finding]:
    """What a trace breaks, the earliest step first, then in the order of the stages; [] = clean.

    rules  names to restrict it to; None = all that hold for the trace's algorithm
    Raises DdvizError for a name that is no rule. Never raises for what a trace holds.
    """
    examination = Examination(trace.header, rules)
    examination.take(trace.steps)
    return examination.findings(trace)


def examine_path(path: str | Path, rules: Iterable[str] | None = None) -> dict[Path, list[Finding]]:
    """Findings per file, for one file or every *.ddviz below a folder, by name.

    Raises TraceError where the path, or a single file named, holds no trace. In a folder such a file is a
    finding of rule `incomplete`.
    """
    rules, path = None if rules is None else list(rules), Path(path)
    if not path.is_dir():
        trace, examination = _examine_file(path, rules)
        return {path: examination.findings(trace)}
    files = sorted(file for file in path.rglob("*.ddviz") if file.is_file())
    if not files:
        raise TraceError(f"{path}: no .ddviz file in it or below; record one with: ddviz record")
    results: dict[Path, list[Finding]] = {}
    residents: dict[Path, Resident] = {}
    for file in files:
        try:
            trace, examination = _examine_file(file, rules)
        except TraceError as error:
            results[file] = [RULES["incomplete"].finding(Fault(str(error)), None)]
            continue
        results[file] = examination.findings(trace)
        resident = resident_of(trace, examination.outlines)
        if resident is not None:
            residents[file] = resident
    for place, found in examine_together(list(residents.values()), rules).items():
        file = list(residents)[place]
        results[file] = in_order([*results[file], *found])
    return results


def examine_together(
    residents: Sequence[Resident], rules: Iterable[str] | None = None
) -> dict[int, list[Finding]]:
    """What only the traces of one folder together show, by place of the trace in `residents`."""
    tallies: dict[int, _Tally] = {}
    view = FolderView(list(residents))
    for rule in RULES.values():
        if rule.scope == "folder" and (rules is None or rule.name in rules):
            for fault in rule.check(view):
                tallies.setdefault(fault.trace, _Tally()).add(rule, [fault], None)
    return {place: tally.findings() for place, tally in tallies.items()}


def faults(findings: Iterable[Finding]) -> list[Finding]:
    """Those that count against a trace: notices left out."""
    return [finding for finding in findings if finding.severity == "fault"]


class Examination:
    """One trace under examination: its steps as they come, then what only all of them show."""

    def __init__(self, header: Header, rules: Iterable[str] | None = None) -> None:
        self.outlines: list[Outline] = []
        self._header, self._rules = header, _chosen(rules, header.algorithm)
        self._tally = _Tally()

    def take(self, steps: Iterable[Step]) -> list[Finding]:
        """Examine the steps that come next; what the rules of a step found in them."""
        before = len(self._tally.found)
        with np.errstate(all="ignore"):
            for step in steps:
                self._take(step)
        return self._tally.found[before:]

    def _take(self, step: Step) -> None:
        view = StepView(self._header, step)
        wrong = list(RULES["shapes"].check(view))
        self.outlines.append(outline_of(step, sound=not wrong))
        for rule in self._rules:
            if rule.name == "shapes":
                self._tally.add(rule, wrong, step.index)
            elif rule.scope == "step" and not wrong:
                self._tally.add(rule, rule.check(view), step.index)

    def result(self) -> bytes:
        """What was found, for `join` in another process."""
        return msgspec.msgpack.encode((self._tally.found, self._tally.counts, self.outlines))

    def join(self, result: bytes) -> None:
        """Take over what another process found in the steps that come next."""
        found, counts, outlines = msgspec.msgpack.decode(
            result, type=tuple[list[Finding], dict[str, int], list[Outline]]
        )
        self._tally.join(found, counts)
        self.outlines += outlines

    def findings(self, trace: Trace, growing: bool = False) -> list[Finding]:
        """All that was found in the trace, whose steps were taken; to be asked again when it has grown."""
        tally = self._tally.copy()
        view = TraceView(trace, self.outlines, growing)
        for rule in self._rules:
            if rule.scope == "trace":
                tally.add(rule, rule.check(view), None)
        return tally.findings()


def resident_of(trace: Trace, outlines: list[Outline]) -> Resident | None:
    """The trace as its neighbours see it; None where it can't be told when it was under way."""
    header = trace.header
    try:
        created = datetime.fromisoformat(header.created)
        changed = datetime.fromtimestamp(trace.path.stat().st_mtime, UTC)
    except (ValueError, OSError, OverflowError):
        return None
    by_batch = {
        outline.batch.id: Place(i, outline.batch)
        for i, outline in enumerate(outlines)
        if outline.batch is not None and outline.sound
    }
    utc = created if created.tzinfo else created.replace(tzinfo=UTC)
    places = Places(header.engine, (header.target, header.draft), utc, changed, by_batch)
    restarts = frozenset(place for place, _ in trace.prefills)
    return Resident(trace.path.parent, trace.name, places, outlines, restarts)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The earliest step first, then in the order of the stages; what only counts further ones comes last."""
    order = {name: place for place, name in enumerate(RULES)}
    return sorted(findings, key=lambda f: (f.more > 0, f.step is None, f.step or 0, order[f.rule]))


class _Tally:
    """Findings of one trace, the first few of each rule, the rest as a number."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.counts: dict[str, int] = {}

    def copy(self) -> "_Tally":
        other = _Tally()
        other.join(self.found, self.counts)
        return other

    def add(self, rule: Rule, wrong: Iterable[Fault], step: int | None) -> None:
        for fault in wrong:
            count = self.counts[rule.name] = self.counts.get(rule.name, 0) + 1
            if count <= MOST_PER_RULE:
                self.found.append(rule.finding(fault, step))

    def join(self, found: list[Finding], counts: dict[str, int]) -> None:
        """Add those of later steps."""
        room = {name: MOST_PER_RULE - self.counts.get(name, 0) for name in counts}
        for finding in found:
            if room[finding.rule] > 0:
                self.found.append(finding)
            room[finding.rule] -= 1
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def findings(self) -> list[Finding]:
        more = [
            RULES[name].finding(Fault(f"and {count - MOST_PER_RULE} more"), None, count - MOST_PER_RULE)
            for name, count in self.counts.items()
            if count > MOST_PER_RULE
        ]
        return in_order([*self.found, *more])


def _chosen(names: Iterable[str] | None, algorithm: str) -> list[Rule]:
    if names is None:
        return [rule for rule in RULES.values() if algorithm in rule.algorithms]
    names = list(names)
    for name in names:
        if name not in RULES:
            raise DdvizError(f"{name!r} is no rule of the doctor; the rules are {', '.join(RULES)}")
    return [rule for rule in RULES.values() if rule.name in names and algorithm in rule.algorithms]


def _examine_file(file: Path, rules: list[str] | None) -> tuple[Trace, Examination]:
    """A file's trace with its steps taken, those of a long one by several processes. Raises TraceError."""
    count = cores() if file.is_file() and file.stat().st_size >= LONG else 1
    if count > 1:
        with Helpers(count - 1) as helpers:
            trace = load(file, check_steps=False)
            try:
                examination = Examination(trace.header, rules)
                _take_shared(examination, trace, helpers, rules)
                return trace, examination
            except msgspec.MsgspecError:  # a step that is none, or a helper that died: read it with all care
                pass
    trace = load(file)
    examination = Examination(trace.header, rules)
    examination.take(trace.steps)
    return trace, examination


def _take_shared(examination: Examination, trace: Trace, helpers: Helpers, rules: list[str] | None) -> None:
    """The first part of the steps here, the others by the helpers."""
    share = -(-len(trace.steps) // (len(helpers) + 1))
    for place in range(len(helpers)):
        lines = trace.steps.lines(share * (place + 1), share * (place + 2))
        helpers.ask(place, trace.header, rules, lines)
    examination.take(trace.steps[i] for i in range(min(share, len(trace.steps))))  # never all at once
    for place in range(len(helpers)):
        examination.join(helpers.answer(place))
