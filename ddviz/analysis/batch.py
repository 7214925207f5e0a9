"""The rows of one batch together: which traces of a server shared a forward, and where they clash.

In:  traces of one folder, as files; steps of one batch.
Out: Places of a trace in its server's batches (`places_in`), whether another took part in a batch of ours
     (`may_share`), and what the kernel's flat arrays say that can't be (`clashes`).
Not here: drawing it (viewer/batch.js), which files may be read (app/traces.py).

    batch 812, T = 4          row 0 (A)        row 1 (B)        row 2: no trace
    flat index            0   1   2   3  |  4   5   6   7  |  8   9  10  11

The batch id is the engine's forward counter. It begins anew with the server, so two traces count as one
server's only where engine, models, batch size and T are the same and neither ended before the other began.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from ddviz.trace.frames import Budget, DamageError, decompress_frame, next_frame
from ddviz.trace.schema import Batch, EngineInfo, Step


class Place(NamedTuple):
    """Where a trace took part in a batch."""

    step: int  # its place among the trace's steps
    batch: Batch


class Places(NamedTuple):
    """One trace's part in its server's batches."""

    engine: EngineInfo
    models: tuple[str, str | None]  # target, draft
    created: datetime
    changed: datetime  # the file, last
    by_batch: dict[int, Place]


class _Head(msgspec.Struct, tag_field="event", tag="header"):
    """As much of a header as joining takes."""

    engine: EngineInfo
    target: str
    created: str
    draft: str | None = None


class _Line(msgspec.Struct):
    """As much of a later line: decoding a step whole takes ten times as long."""

    event: str
    batch: Batch | None = None


_head_decoder = msgspec.json.Decoder(_Head)
_line_decoder = msgspec.json.Decoder(_Line)


def places_in(path: Path) -> Places | None:
    """A trace's places, as far as it is whole; None for a file that is no trace."""
    try:
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        lines = _lines(path.read_bytes())
        head = _head_decoder.decode(next(lines, b""))
        created = datetime.fromisoformat(head.created)
        steps = [line for line in map(_line_decoder.decode, lines) if line.event == "step"]
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    by_batch = {step.batch.id: Place(i, step.batch) for i, step in enumerate(steps) if step.batch}
    utc = created if created.tzinfo else created.replace(tzinfo=UTC)
    return Places(head.engine, (head.target, head.draft), utc, changed, by_batch)


def _lines(data: bytes) -> Iterator[bytes]:
    at, budget = 0, Budget()
    try:
        while at < len(data):
            frame = next_frame(data, at)
            line = decompress_frame(data, frame)
            budget.take(frame, line)
            yield line
            at += frame.size
    except DamageError:
        return  # what stands before it counts


def may_share(own: Places, other: Places, batch: Batch) -> Place | None:
    """The other trace's place in this batch of ours; None where it had no part in it."""
    place = other.by_batch.get(batch.id)
    if place is None or place.batch.row == batch.row or not 0 <= place.batch.row < batch.size:
        return None
    if (place.batch.size, place.batch.q_len) != (batch.size, batch.q_len):
        return None
    if own.engine != other.engine or own.models != other.models:
        return None
    return None if own.changed < other.created or other.changed < own.created else place


def clashes(steps: dict[int, Step]) -> list[str]:
    """Sentences on what no batch may hold: an index in another's row, a slot of two owners. steps: by row."""
    found: list[str] = []
    owners: dict[int, tuple[int, int]] = {}  # slot -> (row, node)
    for row, step in sorted(steps.items()):
        assert step.batch is not None
        width = step.batch.q_len
        index = step.retrieve.index if step.retrieve else []
        for name, values in (("retrieve_index", index), ("accept_index", step.accept.index)):
            for place, flat in enumerate(values):
                if not row * width <= flat < (row + 1) * width:
                    found.append(
                        f"{name}[{place}] of row {row} is {flat}, {_whose(flat, width, step.batch.size)}"
                    )
        for node, slot in enumerate(_own_slots(step)):
            before = owners.setdefault(slot, (row, node))
            if before[0] != row:
                found.append(
                    f"slot {slot} holds node {node} of row {row} and node {before[1]} of row {before[0]}"
                )
    return found


def _own_slots(step: Step) -> Sequence[int]:
    """Of its nodes; where pad nodes are written matters to nobody."""
    return [slot for slot in (step.slots or [])[: len(step.tree.tokens)] if slot >= 0]


def _whose(flat: int, width: int, size: int) -> str:
    row = flat // width if width else -1
    return f"which is row {row}'s" if 0 <= row < size else "which is no row's"
