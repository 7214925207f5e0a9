"""Two traces side by side: aligned by token position, and where their texts part.

In:  two loaded traces.
Out: Diff: the first position with different tokens, and the stops at which both can be looked at together.
Not here: drawing it (viewer/compare.js), judging either (check/).

    position   0    1    2    3    4    5
    a          T  | u    v  | w    x    y |      steps 0 and 1, T from the prefill
    b          T  | u  | v    w  | z |           steps 0, 1 and 2
    stops           1    2    3    4             where a step of either begins: (0,0) (0,1) (1,1) (1,2)
    parts_at                       4             x is not z

Tokens are compared by their bytes, so that models with other ids for the same text can be compared too.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from ddviz.trace import Trace


class Stop(NamedTuple):
    """A position of the output, and the step of each trace that emitted its token; None before a step."""

    position: int
    a: int | None
    b: int | None


@dataclass(frozen=True, slots=True)
class Side:
    """One trace along its output. Position 0 is the token of the prefill."""

    tokens: list[int]
    starts: list[int]  # [steps] position of the first token that the step emitted; never falling
    accept_lengths: list[int]  # [steps]
    ms: list[float | None]  # [steps] of the whole step

    def step_at(self, position: int) -> int | None:
        """The step that emitted the token there; the last one beyond the end, None for the prefill."""
        place = bisect_right(self.starts, position) - 1
        return place if place >= 0 else None


@dataclass(frozen=True, slots=True)
class Diff:
    a: Side
    b: Side
    same_prompt: bool
    parts_at: int | None  # first position where both have a token, and not the same
    common: int  # tokens that are the same from the start

    @property
    def stops(self) -> list[Stop]:
        """Every position where a step of either begins, in order."""
        positions = sorted({*self.a.starts, *self.b.starts})
        return [Stop(position, self.a.step_at(position), self.b.step_at(position)) for position in positions]


def diff(a: Trace, b: Trace) -> Diff:
    """Align two traces. Either may still grow, or end early."""
    sides = side_of(a), side_of(b)
    pairs = zip(sides[0].tokens, sides[1].tokens, strict=False)
    common = 0
    for one, other in pairs:
        if not _same(a, one, b, other):
            break
        common += 1
    shorter = min(len(side.tokens) for side in sides)
    return Diff(*sides, _same_prompt(a, b), common if common < shorter else None, common)


def side_of(trace: Trace) -> Side:
    """A trace along its output; the token of a later prefill (a retraction) stands before its step."""
    tokens: list[int] = []
    side = Side(tokens, [], [], [])
    prefills = list(trace.prefills)
    for i, step in enumerate(trace.steps):
        while prefills and prefills[0][0] <= i:
            tokens.append(prefills.pop(0)[1].token)
        side.starts.append(len(tokens))
        side.accept_lengths.append(step.accept.num_accepted + 1)
        side.ms.append(None if step.total_us is None else step.total_us / 1000)
        tokens += step.emitted
    tokens += [prefill.token for _, prefill in prefills]
    return side


def _same(a: Trace, one: int, b: Trace, other: int) -> bool:
    """Two tokens, by their bytes; where either trace does not name them, by their ids."""
    return a.tokens[one] == b.tokens[other] if one in a.tokens and other in b.tokens else one == other


def _same_prompt(a: Trace, b: Trace) -> bool:
    return (a.prompt and a.prompt.text) == (b.prompt and b.prompt.text)
