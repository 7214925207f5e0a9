"""What a rule of the doctor is: a function that looks at a step, a trace or a folder, and yields faults.

In:  StepView, TraceView or FolderView (views.py).
Out: Fault, which doctor.py turns into a Finding: data, for any screen to show.
Not here: the rules themselves (rules_*.py), running them (doctor.py).

A rule's docstring is the text the user reads. Its name is the function's, with hyphens. A rule never fixes
anything and never raises: the arrays it sees have the right lengths (rule `shapes`), but their values may be
anything.

A rule of severity "fault" tells what can't be right. One of severity "notice" tells what may well be right
and is worth knowing: a decision by a hair, a slow step. Notices don't count against a trace.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ddviz.check.views import FolderView, StepView, TraceView
from ddviz.trace.schema import Algorithm

ALL: frozenset[str] = frozenset(get_args(Algorithm))
DRAFTED = ALL - {"AR"}  # algorithms with a tree, be it a chain
POSITION_DRAFTED = frozenset({"DDTREE", "DFLASH"})  # one draft distribution per position
DDTREE = frozenset({"DDTREE"})
Severity = Literal["fault", "notice"]


class Fault(NamedTuple):
    """What a rule saw: one sentence with the values."""

    message: str
    node: int | None = None
    step: int | None = None  # filled in for rules of a step
    cause: str | None = None  # where this fault tells more about the likely cause than the rule alone
    trace: int = 0  # place among the traces of a folder; of a rule of a folder


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a trace breaks a rule."""

    rule: str
    step: int | None  # the step's index; None = the trace as a whole
    node: int | None
    message: str  # one sentence with the values
    cause: str  # likely cause
    look_at: str  # arrays and functions to look at next
    more: int = 0  # > 0: stands for so many further findings of its rule
    severity: Severity = "fault"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with what the user should know about it."""

    name: str
    check: Callable[[Any], Iterator[Fault]]  # of a StepView, TraceView or FolderView, as `scope` says
    scope: Literal["step", "trace", "folder"]
    cause: str
    look_at: str
    algorithms: frozenset[str]  # those it holds for
    severity: Severity = "fault"

    @property
    def text(self) -> str:
        return inspect.getdoc(self.check) or ""

    def finding(self, fault: Fault, step: int | None, more: int = 0) -> Finding:
        where, cause = step if fault.step is None else fault.step, fault.cause or self.cause
        return Finding(self.name, where, fault.node, fault.message, cause, self.look_at, more, self.severity)


def step_rule(
    cause: str, look_at: str, algorithms: frozenset[str] = ALL, severity: Severity = "fault"
) -> Callable[[Callable[[StepView], Iterator[Fault]]], Rule]:
    """A rule that looks at one step at a time."""
    return lambda check: Rule(_name(check), check, "step", cause, look_at, algorithms, severity)


def trace_rule(
    cause: str, look_at: str, algorithms: frozenset[str] = ALL, severity: Severity = "fault"
) -> Callable[[Callable[[TraceView], Iterator[Fault]]], Rule]:
    """A rule that looks from step to step, or at the whole."""
    return lambda check: Rule(_name(check), check, "trace", cause, look_at, algorithms, severity)


def folder_rule(
    cause: str, look_at: str, algorithms: frozenset[str] = ALL, severity: Severity = "fault"
) -> Callable[[Callable[[FolderView], Iterator[Fault]]], Rule]:
    """A rule that looks from trace to trace of a folder."""
    return lambda check: Rule(_name(check), check, "folder", cause, look_at, algorithms, severity)


def _name(check: Callable[[Any], Iterator[Fault]]) -> str:
    return check.__name__.replace("_", "-")
