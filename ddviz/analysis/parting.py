"""`ddviz diff a b`: the first step where two traces part, and which array parted first.

In:  two loaded traces.
Out: Parted: that step, and every array of it in the order in which the stages make them; rich text; a dict.
Not here: stepping through both side by side (diff.py, viewer/compare.js).

Steps are compared pair by pair: the first pair that differs is where the cause lies, since everything before
it was the same. Indices are local (flat minus row*T) and KV slots are left out: where a request lies in a
batch and in memory is no difference of the algorithm. Numbers count as the same within TOLERANCE of each
other, which two devices' float32 needs; what is chosen by them is compared exactly.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddviz.analysis.diff import diff, side_of
from ddviz.analysis.traces import setting_of
from ddviz.trace import Trace
from ddviz.trace.schema import Step

TOLERANCE = 1e-3  # absolute or relative, of floats
MISSING = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """One array of a step."""

    array: str  # tree.parents
    where: str  # [17], "" = as a whole
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Parted:
    same_prompt: bool
    step: int | None  # place of the first pair of steps that differ; None where none does
    position: int | None  # of the first token of that step in a's output
    differences: list[Difference]  # in the order of the stages; the first is where to look
    common_tokens: int
    text_parts_at: int | None  # first position of the output where both have a token and not the same
    ends: str  # "" or a sentence on a trace that ends before the other

    @property
    def is_same(self) -> bool:
        return self.same_prompt and self.step is None and self.text_parts_at is None and not self.ends


# What is compared, as the stages make it: name -> the step's own value, None where it was not recorded.
ARRAYS: dict[str, Callable[[Step], Any]] = {
    "prefix_len": lambda s: s.prefix_len,
    "root": lambda s: s.tree.tokens[0],
    "draft.top_ids": lambda s: s.draft and s.draft.top_ids,
    "draft.top_logprobs": lambda s: s.draft and s.draft.top_logprobs,
    "tree.tokens": lambda s: s.tree.tokens,
    "tree.parents": lambda s: s.tree.parents,
    "tree.ranks": lambda s: s.tree.ranks,
    "tree.scores": lambda s: s.tree.scores,
    "retrieve.index": lambda s: s.retrieve and _local(s, s.retrieve.index),
    "retrieve.next_token": lambda s: s.retrieve and s.retrieve.next_token,
    "retrieve.next_sibling": lambda s: s.retrieve and s.retrieve.next_sibling,
    "positions": lambda s: s.positions,
    "mask": lambda s: s.mask and list(s.mask),
    "target.argmax": lambda s: s.target and s.target.argmax,
    "target.raw.node_probs": lambda s: s.target and s.target.raw.node_probs,
    "target.raw.logsumexp": lambda s: s.target and s.target.raw.logsumexp,
    "target.filtered.node_probs": lambda s: s.target and s.target.filtered and s.target.filtered.node_probs,
    "sampling.coins": lambda s: s.sampling and s.sampling.coins,
    "sampling.final_coin": lambda s: s.sampling and s.sampling.final_coin,
    "accept.kernel": lambda s: s.accept.kernel,
    "accept.index": lambda s: _local(s, s.accept.index),
    "accept.num_accepted": lambda s: s.accept.num_accepted,
    "accept.predicts": lambda s: s.accept.predicts,
    "accept.bonus": lambda s: s.accept.bonus,
    "commit.committed_len": lambda s: s.commit and s.commit.committed_len,
    "emitted": lambda s: s.emitted,
}


def part(a: Trace, b: Trace) -> Parted:
    """Compare two traces from the start."""
    texts = diff(a, b)
    pairs = zip(a.steps, b.steps, strict=False)
    found = ((place, differences) for place, pair in enumerate(pairs) if (differences := compare(*pair)))
    step, differences = next(found, (None, []))
    position = None if step is None else side_of(a).starts[step]
    counts = len(a.steps), len(b.steps)
    ends = ""
    if step is None and counts[0] != counts[1]:
        ends = f"{(a if counts[0] < counts[1] else b).name} ends after {min(counts)} steps, the other goes on"
    return Parted(texts.same_prompt, step, position, differences, texts.common, texts.parts_at, ends)


def compare(a: Step, b: Step) -> list[Difference]:
    """Every array of two steps that differs. One that a trace did not record is no difference."""
    found = []
    for name, value in ARRAYS.items():
        values = value(a), value(b)
        if None in values and not name.startswith("sampling"):
            continue
        if name.startswith("draft."):
            values = _same_k(*values)
        where = _first(*values)
        if where is not None:
            found.append(Difference(name, where, *(_at(each, where) for each in values)))
    return found


def render(a: Trace, b: Trace, parted: Parted) -> RenderableType:
    names = Table.grid(padding=(0, 2))
    for letter, trace in (("a", a), ("b", b)):
        sampling = trace.header.sampling
        names.add_row(letter, trace.name, f"{setting_of(trace.header)}, T = {sampling.temperature:g}")
    return Group(names, Text(), *_sentences(a, b, parted), *_tables(parted))


def as_dict(a: Trace, b: Trace, parted: Parted) -> dict[str, Any]:
    return {"a": str(a.path), "b": str(b.path), "same": parted.is_same, **asdict(parted)}


def _sentences(a: Trace, b: Trace, parted: Parted) -> Iterator[Text]:
    if not parted.same_prompt:
        yield Text("The prompts are not the same.", "yellow")
    if parted.step is None:
        yield Text(
            f"All {min(len(a.steps), len(b.steps))} steps are the same. {parted.ends}".strip(), "green"
        )
    else:
        first = parted.differences[0]
        yield Text(
            f"Step {parted.step}, which begins at token {parted.position}, is the first that differs: "
            f"{first.array}{first.where} is {first.a} in a, {first.b} in b.",
            "bold",
        )
    if parted.text_parts_at is None:
        yield Text(f"The texts are the same over {parted.common_tokens} tokens.")
    else:
        words = [_word(trace, parted.text_parts_at) for trace in (a, b)]
        yield Text(
            f"The texts part at token {parted.text_parts_at}: {words[0]} in a, {words[1]} in b.", "yellow"
        )


def _tables(parted: Parted) -> Iterator[RenderableType]:
    if not parted.differences:
        return
    table = Table(title="What differs in that step, as the stages make it", title_justify="left", box=None)
    for column in ("array", "first at", "a", "b"):
        table.add_column(column, overflow="fold")
    for each in parted.differences:
        table.add_row(each.array, each.where, each.a, each.b)
    yield Text()
    yield table


def _first(a: Any, b: Any) -> str | None:
    """Where two values differ first: "" for the values as a whole, [i] or [i][j]; None = nowhere."""
    if isinstance(a, list) and isinstance(b, list):
        for i, (one, other) in enumerate(zip(a, b, strict=False)):
            inner = _first(one, other)
            if inner is not None:
                return f"[{i}]{inner}"
        return None if len(a) == len(b) else f"[{min(len(a), len(b))}]"
    if {type(a), type(b)} in ({float}, {float, int}):
        return None if math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) else ""
    return None if a == b else ""


def _at(value: Any, where: str) -> str:
    for index in where.strip("[]").split("][") if where else []:
        if not isinstance(value, list) or int(index) >= len(value):
            return MISSING
        value = value[int(index)]
    return MISSING if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)[:60]


def _same_k(a: list[list[Any]], b: list[list[Any]]) -> tuple[list[list[Any]], list[list[Any]]]:
    """How many candidates a trace keeps depends on the cap: those that both keep."""
    pairs = [(one[: len(other)], other[: len(one)]) for one, other in zip(a, b, strict=False)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def _local(step: Step, flat: list[int]) -> list[int]:
    return [index - step.flat_root if index >= 0 else index for index in flat]


def _word(trace: Trace, position: int) -> str:
    """The token there, made visible."""
    return f"“{trace.tokens.label(side_of(trace).tokens[position])}”"
