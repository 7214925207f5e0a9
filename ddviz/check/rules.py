"""What a rule of the doctor is: a function that looks at a step, or at a whole trace, and yields faults.

In:  StepView or TraceView (views.py).
Out: Fault, which doctor.py turns into a Finding: data, for any screen to show.
Not here: the rules themselves (rules_*.py), running them (doctor.py).

A rule's docstring is the text the user reads. Its name is the function's, with hyphens. A rule never fixes
anything and never raises: the arrays it sees have the right lengths (rule `shapes`), but their values may be
anything.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ddviz.check.views import StepView, TraceView
from ddviz.trace.schema import Algorithm

ALL: frozenset[str] = frozenset(get_args(Algorithm))
DRAFTED = ALL - {"AR"}  # algorithms with a tree, be it a chain
POSITION_DRAFTED = frozenset({"DDTREE", "DFLASH"})  # one draft distribution per position
DDTREE = frozenset({"DDTREE"})


class Fault(NamedTuple):
    """What a rule saw: one sentence with the values."""

    message: str
    node: int | None = None
    step: int | None = None  # filled in for rules of a step
    cause: str | None = None  # where this fault tells more about the likely cause than the rule alone


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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with what the user should know about it."""

    name: str
    check: Callable[[Any], Iterator[Fault]]  # of a StepView or a TraceView, as `scope` says
    scope: Literal["step", "trace"]
    cause: str
    look_at: str
    algorithms: frozenset[str]  # those it holds for

    @property
    def text(self) -> str:
        return inspect.getdoc(self.check) or ""

    def finding(self, fault: Fault, step: int | None, more: int = 0) -> Finding:
        where, cause = step if fault.step is None else fault.step, fault.cause or self.cause
        return Finding(self.name, where, fault.node, fault.message, cause, self.look_at, more)


def step_rule(
    cause: str, look_at: str, algorithms: frozenset[str] = ALL
) -> Callable[[Callable[[StepView], Iterator[Fault]]], Rule]:
    """A rule that looks at one step at a time."""
    return lambda check: Rule(_name(check), check, "step", cause, look_at, algorithms)


def trace_rule(
    cause: str, look_at: str, algorithms: frozenset[str] = ALL
) -> Callable[[Callable[[TraceView], Iterator[Fault]]], Rule]:
    """A rule that looks from step to step, or at the whole."""
    return lambda check: Rule(_name(check), check, "trace", cause, look_at, algorithms)


def _name(check: Callable[[Any], Iterator[Fault]]) -> str:
    return check.__name__.replace("_", "-")
