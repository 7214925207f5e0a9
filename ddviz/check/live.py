"""The doctor beside a running engine: follow traces while they grow, and tell findings as steps arrive.

In:  a folder in which traces appear and grow, or one file.
Out: News, a line each: findings that are new, traces that came to their end.
Not here: the rules (rules_*.py), examining a trace that is whole (doctor.py).

Rules of a step speak when it arrives; those of a whole trace are asked again with every batch of steps, and
what they have said is not said twice. What a trace that grows can't be blamed for (no end yet) waits.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from ddviz.check.doctor import RULES, Examination, examine_together, resident_of
from ddviz.check.report import line, summary
from ddviz.check.rules import Fault, Finding
from ddviz.check.views import Resident
from ddviz.errors import TraceError
from ddviz.trace import Trace, TraceFollower

QUIET_S = 60.0  # a trace that was not written to for so long is not followed, or no longer


class News(NamedTuple):
    """Something to tell of a trace."""

    path: Path
    finding: Finding | None  # None: the trace came to its end
    says: str  # in one line


def print_news(news: News, as_json: bool = False) -> None:
    """A finding with its likely cause; as JSON, one object in a line: a finding, or `ended`."""
    if as_json:
        told = {"ended": news.says} if news.finding is None else msgspec.to_builtins(news.finding)
        print(msgspec.json.encode({"trace": str(news.path), **told}).decode(), flush=True)
    else:
        Console(highlight=False).print(line(*news), end="", soft_wrap=True)
        sys.stdout.flush()


class Watch:
    """A folder, with all below it, or one file. `poll` now and then."""

    def __init__(self, path: str | Path) -> None:
        """Raises TraceError where the path is neither."""
        self.path = Path(path)
        if not self.path.exists():
            raise TraceError(f"{self.path}: no such file or folder")
        self._is_file = not self.path.is_dir()
        self._patients: dict[Path, _Patient] = {}
        self.has_faults = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for: the file that was named has its end."""
        patient = self._patients.get(self.path) if self._is_file else None
        return patient is not None and patient.is_over

    def poll(self) -> Iterator[News]:
        """What is new since the last time. Raises TraceError where the file that was named is no trace."""
        now = time.time()
        news = [news for path in self._paths(now) for news in self._poll_file(path)]
        if any(patient.grew for patient in self._patients.values()):
            news += self._poll_folder()
        for one in news:
            self.has_faults |= one.finding is not None and one.finding.severity == "fault"
            yield one

    def _paths(self, now: float) -> list[Path]:
        """The file, or those of the folder that were written to lately; others are forgotten."""
        if self._is_file:
            return [self.path]
        lately = sorted(path for path in self.path.rglob("*.ddviz") if abs(now - _written(path)) < QUIET_S)
        self._patients = {path: patient for path, patient in self._patients.items() if path in lately}
        return lately

    def _poll_file(self, path: Path) -> list[News]:
        patient = self._patients.get(path)
        if patient is None or patient.was_overwritten():
            patient = self._patients[path] = _Patient(path)
        try:
            return patient.poll()
        except TraceError as error:
            if self._is_file:
                raise
            return patient.give_up(str(error))

    def _poll_folder(self) -> list[News]:
        residents = {patient: patient.resident() for patient in self._patients.values()}
        known = {patient: resident for patient, resident in residents.items() if resident is not None}
        found, patients = examine_together(list(known.values())), list(known)
        return [news for place, findings in found.items() for news in patients[place].tell(findings)]


class _Patient:
    """One trace as far as it was examined."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_over = False
        self.grew = False  # at the last poll
        self._follower = TraceFollower(path)
        self._examination: Examination | None = None
        self._findings: list[Finding] = []  # as last told, of this trace alone
        self._told: set[tuple[str, int | None, int | None]] = set()

    def poll(self) -> list[News]:
        self.grew = bool(self._follower.poll()) if not self.is_over else False
        trace = self._follower.trace
        if trace is None or self.is_over or not (self.grew or trace.damage):
            return []
        if self._examination is None:
            self._examination = Examination(trace.header)
        new = range(len(self._examination.outlines), len(trace.steps))
        self._examination.take(trace.steps[i] for i in new)
        self.is_over = trace.end is not None or trace.damage is not None
        self._findings = self._examination.findings(trace, growing=not self.is_over)
        news = self.tell(self._findings)
        return [*news, self._ended(trace)] if self.is_over else news

    def tell(self, findings: list[Finding]) -> list[News]:
        """Those that were not told before. Rules that speak on and on are told to do so once."""
        news = []
        for finding in findings:
            key = finding.rule, finding.step, -1 if finding.more else finding.node
            if key not in self._told:
                self._told.add(key)
                says = "there are more" if finding.more else finding.message
                news.append(News(self.path, finding, says))
        return news

    def give_up(self, reason: str) -> list[News]:
        """The file is no trace."""
        self.is_over = True
        return self.tell([RULES["incomplete"].finding(Fault(reason), None)])

    def resident(self) -> Resident | None:
        trace = self._follower.trace
        if trace is None or self._examination is None:
            return None
        return resident_of(trace, self._examination.outlines)

    def was_overwritten(self) -> bool:
        """Whether another recording began under its name."""
        trace = self._follower.trace
        try:
            return trace is not None and self.path.stat().st_size < trace.size
        except OSError:
            return False

    def _ended(self, trace: Trace) -> News:
        return News(self.path, None, f"ended after {len(trace.steps)} steps, {summary(self._findings)}")


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
