"""What the scheduler's process tells those of the writers, in the order in which its results came.

Not here: the arrays of a step, which lie in shared memory (slots.py).
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ddviz.engines.sglang_plugin.tracing.steps import HostFacts
from ddviz.trace import schema


class Begin(Struct, frozen=True, tag=True, array_like=True):
    rid: str
    path: str
    header: schema.Header
    prompt_ids: list[int]


class Prefilled(Struct, frozen=True, tag=True, array_like=True):
    rid: str
    event: schema.Prefill


class Array(Struct, frozen=True, array_like=True):
    """One array of a step, as it follows the one before it in the slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int  # bytes
    whole: bool  # a row for each request of the batch; else one for each that is traced


class Layout(NamedTuple):
    """Arrays that follow each other in a slot."""

    arrays: tuple[Array, ...]
    size: int  # bytes of all
    encoded: msgspec.Raw  # the arrays as a job says them

    @classmethod
    def of(cls, arrays: Iterable[Array]) -> "Layout":
        arrays = tuple(arrays)
        return cls(arrays, sum(a.size for a in arrays), msgspec.Raw(msgspec.msgpack.encode(arrays)))


class Row(Struct, frozen=True, array_like=True):
    """One traced request of one step, and what became of it."""

    rid: str
    at: int  # among those that are traced; among all of the batch: facts.row
    facts: HostFacts
    level: schema.CaptureLevel
    emitted: list[int]


class Stepped(Struct, frozen=True, tag=True, array_like=True):
    turn: int  # of the slots
    layout: msgspec.Raw  # tuple[Array, ...]: the same in most steps, and encoded once
    rows: list[Row]
    times_us: dict[str, float]


class Lost(Struct, frozen=True, tag=True, array_like=True):
    rid: str
    index: int
    reason: str


class Ended(Struct, frozen=True, tag=True, array_like=True):
    rid: str
    event: schema.End
    being_written: list[str] = []  # paths of the other traces that the server has open


Job = Begin | Prefilled | Stepped | Lost | Ended
