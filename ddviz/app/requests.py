"""Requests from the browser: what every server function does with them.

In:  one argument of any shape, whatever a page sends.
Out: plain dicts; {"error": sentence} where a request makes no sense.
Not here: the functions themselves (panels.py, export.py).
"""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from ddviz.errors import DdvizError

Answer = dict[str, Any]


def answering(function: Callable[[Answer], Answer]) -> Callable[[Any], Answer]:
    """The app's wrapper: bad requests and user-data errors become {"error": sentence}."""

    @functools.wraps(function)
    def answer(request: Any = None) -> Answer:
        try:
            if not isinstance(request, dict):
                raise DdvizError("a request must be an object")
            return function(request)
        except DdvizError as error:
            return {"error": str(error)}

    answer.__annotations__ = {}  # Gradio inspects them
    return answer


def served(function: Callable[[Any], Answer]) -> Callable[[Any], Response]:
    """As Gradio is to serve it: encoded here, since FastAPI takes ten times as long over a step's numbers."""

    @functools.wraps(function)
    def serve(request: Any = None) -> Response:
        return Response(msgspec.json.encode(function(request)), media_type="application/json")

    return serve


def trace_id_of(request: Answer) -> str:
    trace_id = request.get("trace")
    if not isinstance(trace_id, str) or len(trace_id) > 64:
        raise DdvizError("trace must be the id of an open trace")
    return trace_id


def index_of(request: Answer, name: str) -> int:
    value = request.get(name)
    if type(value) is not int or not 0 <= value < 2**53:  # type(): True is no number here
        raise DdvizError(f"{name} must be a whole number, 0 or more")
    return value
