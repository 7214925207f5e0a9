"""What the list of findings asks for: the doctor's findings in a trace that is whole.

In:  a trace's id.
Out: {"findings": [...] as check/rules.py has them, or None while an engine is still writing it}.
Not here: the rules (check/), the list (viewer/findings.js).
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ddviz.app.requests import Answer, answering, trace_id_of
from ddviz.app.session import Session
from ddviz.check.doctor import examine_path
from ddviz.errors import DdvizError
from ddviz.trace import Trace

MOST_KEPT = 64  # traces whose findings are remembered


def findings_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def findings(request: Answer) -> Answer:
        return {"findings": findings_of(session, trace_id_of(request))}

    return findings


def findings_of(session: Session, trace_id: str) -> list[Answer] | None:
    """Plain data; None while the trace grows. Raises DdvizError for an id that was never given out."""
    growing = session.growing(trace_id)

    def whole(trace: Trace) -> Path | None:
        return trace.path if trace.end is not None or trace.damage is not None or not growing else None

    path = session.registry.view(trace_id, whole, growing)
    return None if path is None else _known.of(path)


class _Known:
    """Findings by file, looked for again where the file changed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[tuple[int, int], list[Answer]]] = {}

    def of(self, path: Path) -> list[Answer]:
        try:
            now = path.stat().st_size, path.stat().st_mtime_ns
        except OSError:
            raise DdvizError(f"{path.name}: was removed") from None
        with self._lock:  # one trace at a time: more would only be slower
            if path not in self._kept or self._kept[path][0] != now:
                self._kept[path] = now, msgspec.to_builtins(examine_path(path)[path])
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return self._kept[path][1]


_known = _Known()
