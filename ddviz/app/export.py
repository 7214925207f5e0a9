"""What the Export sheet of the viewer asks for: sizes of both pages, and a trace or a step as a file.

In:  requests from the browser: a trace's id, a format, a level, a step.
Out: {"light": bytes, "standard": bytes}; {"name", "type", "base64" or "text"}, which the browser saves.
Not here: what is written (viewer/html.py, viewer/graph.py).
"""

import base64
from collections.abc import Callable
from typing import Any, TypeVar

from ddviz.app.findings import findings_of
from ddviz.app.requests import Answer, index_of, trace_id_of
from ddviz.app.session import Session
from ddviz.errors import BadValueError, DdvizError
from ddviz.trace import Trace
from ddviz.viewer.html import page, page_sizes

TYPES = {
    "html": "text/html",
    "svg": "image/svg+xml",
    "png": "image/png",
    "dot": "text/vnd.graphviz",
    "graphml": "application/graphml+xml",
    "json": "application/json",
}
Result = TypeVar("Result")


def sizes(session: Session, request: Answer) -> Answer:
    return _of_trace(session, trace_id_of(request), lambda trace: {**page_sizes(trace)})


def exported(session: Session, request: Answer) -> Answer:
    """The file. Raises DdvizError where the request makes no sense, or dot is missing."""
    trace_id, step = trace_id_of(request), index_of(request, "step")
    to, level = str(request.get("to")), str(request.get("level") or "standard")
    if to not in TYPES:
        raise BadValueError(f"to must be one of {', '.join(TYPES)}")
    if to == "html":
        found = findings_of(session, trace_id)
        name, text = _of_trace(
            session,
            trace_id,
            lambda t: (f"{t.name}.html", page(t, level, step, findings=found)),  # type: ignore[arg-type]
        )
        return {"name": name, "type": TYPES[to], "text": text}
    from ddviz.viewer.graph import graph_bytes

    name, raw = _of_trace(
        session, trace_id, lambda trace: (f"{trace.name}-step-{step}.{to}", graph_bytes(trace, step, to))
    )
    return {"name": name, "type": TYPES[to], "base64": base64.b64encode(raw).decode("ascii")}


def _of_trace(session: Session, trace_id: str, function: Callable[[Trace], Result]) -> Result:
    """`function` of a trace, without holding others up; of one that grows, while nothing is added to it."""
    growing = session.growing(trace_id)
    found: Any = session.registry.view(trace_id, function if growing else lambda trace: trace, growing)
    if found is None:
        raise DdvizError("the trace has not begun")
    return found if growing else function(found)
