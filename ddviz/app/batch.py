"""What the batch panel asks for: all rows of a step's batch, from the traces that lie beside it.

In:  a trace's id and a step of it.
Out: the batch as viewer/batch.js takes it: a row each, with its arrays, or why there is none.
Not here: which traces belong together, what clashes (analysis/batch.py).
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddviz.analysis.batch import Place, Places, clashes, may_share, places_in
from ddviz.app.requests import Answer, answering, index_of, trace_id_of
from ddviz.app.session import Session
from ddviz.app.traces import Entry
from ddviz.errors import DdvizError
from ddviz.trace import Trace
from ddviz.trace.schema import Step
from ddviz.viewer.batch import row_view

MISSING = "no trace here: its request was not traced, or its file lies elsewhere"


def batch_function(session: Session) -> Callable[[Any], Answer]:
    known = _KnownPlaces()

    @answering
    def batch(request: Answer) -> Answer:
        """{id, size, q_len, mode, rows: [row_view + {trace: its link} or {row, missing}], clashes, notes}."""
        trace_id, index = trace_id_of(request), index_of(request, "index")
        own, step = _step(session, trace_id, index)
        if step.batch is None:
            raise DdvizError("the batch of this step is not recorded")
        found, notes = _neighbours(session, known, own, trace_id, step)
        rows: dict[int, Answer] = {step.batch.row: row_view(own, index)}
        steps = {step.batch.row: step}
        for row, (entry, place) in found.items():
            other, steps[row] = _step(session, entry.id, place.step)
            rows[row] = row_view(other, place.step) | {"trace": session.registry.link_of(entry.id)}
        size = min(step.batch.size, 1024)
        return {
            "id": step.batch.id,
            "size": step.batch.size,
            "q_len": step.batch.q_len,
            "mode": step.batch.mode,
            "own": step.batch.row,
            "rows": [rows.get(row, {"row": row, "missing": MISSING}) for row in range(size)],
            "clashes": clashes(steps),
            "notes": notes,
        }

    return batch


def _step(session: Session, trace_id: str, index: int) -> tuple[Trace, Step]:
    def both(trace: Trace) -> tuple[Trace, Step]:
        if index >= len(trace.steps):
            raise DdvizError(f"there is no step {index}; {trace.name} has {len(trace.steps)}")
        return trace, trace.steps[index]

    found = session.registry.view(trace_id, both, session.growing(trace_id))
    if found is None:
        raise DdvizError("the trace has not begun")
    return found


def _neighbours(
    session: Session, known: "_KnownPlaces", trace: Trace, trace_id: str, step: Step
) -> tuple[dict[int, tuple[Entry, Place]], list[str]]:
    """The traces of the other rows, and notes on rows that two traces claim."""
    assert step.batch is not None
    own, notes = known.of(trace.path), []
    claims: dict[int, list[tuple[float, Entry, Place]]] = {}
    for entry in _beside(session, trace_id):
        other = known.of(entry.path)
        place = may_share(own, other, step.batch) if own and other else None
        if own and other and place:
            apart = abs((other.created - own.created).total_seconds())
            claims.setdefault(place.batch.row, []).append((apart, entry, place))
    found = {}
    for row, claimed in claims.items():
        claimed.sort(key=lambda claim: claim[0])
        found[row] = claimed[0][1:]
        if len(claimed) > 1:
            notes.append(
                f"row {row} is claimed by {len(claimed)} traces; the one begun nearest in time is shown"
            )
    return found, notes


def _beside(session: Session, trace_id: str) -> list[Entry]:
    """The traces in the folder of this one, as far as the app lists it."""
    kind = session.registry.link_of(trace_id).partition(":")[0]
    listed = {"sample": session.registry.samples, "run": session.registry.saved_runs}.get(kind, list)
    return [entry for entry in listed() if entry.id != trace_id]


class _KnownPlaces:
    """places_in by file, read again where the file changed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[tuple[int, int], Places | None]] = {}

    def of(self, path: Path) -> Places | None:
        path = path.resolve()
        try:
            now = path.stat().st_size, path.stat().st_mtime_ns
        except OSError:
            return None
        with self._lock:
            if path not in self._kept or self._kept[path][0] != now:
                self._kept[path] = now, places_in(path)
            return self._kept[path][1]
