"""The panels that Gradio does not have: the viewer, the control bar, the notice; and their server functions.

In:  requests from the browser, each one argument of any shape.
Out: plain dicts; {"error": sentence} where a request makes no sense.
Not here: tabs (live.py, replay.py).

Every template is a constant: what a model wrote would be executed inside one. The browser pulls data through
the server functions and shows it with textContent.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import msgspec

from ddviz.app import export
from ddviz.app.batch import batch_function
from ddviz.app.findings import findings_function
from ddviz.app.requests import Answer, answering, index_of, served, trace_id_of
from ddviz.app.samples import samples_function
from ddviz.app.session import Session, status_dict
from ddviz.errors import DdvizError
from ddviz.trace import Trace
from ddviz.viewer.html import assets
from ddviz.viewer.view import MAX_ROWS, empty_view, poll_view, step_view

HERE = Path(__file__).parent
# of every event. preprocess: our functions look at what came themselves, and answer in sentences
QUIET = {"show_progress": "hidden", "queue": False, "api_visibility": "private", "preprocess": False}


def viewer_panel(session: Session, label: str, value: Answer | None = None) -> gr.HTML:
    """Shows the trace that its value {"trace": id, "live": bool, "nonce": n} names; a new n draws anew."""
    return stage_panel(session, label, "viewer_panel.js", value=value)


def stage_panel(
    session: Session,
    label: str,
    program: str,
    more_functions: tuple[Callable[[Session], Callable[[Any], Answer]], ...] = (),
    js: str | None = None,
    value: Answer | None = None,
) -> gr.HTML:
    """A stage for viewers of traces.

    program         the script that runs there, of this folder
    more_functions  that it asks beside those of a viewer
    js              what it builds on, None = the viewer's own
    """
    return gr.HTML(
        value,
        html_template=f'<section class="ddviz-stage" aria-label="{label}"></section>',
        js_on_load=script(program, before=(assets().js if js is None else js) + script("viewer_source.js")),
        server_functions=[served(make(session)) for make in (*VIEWER_FUNCTIONS, *more_functions)],
        apply_default_css=False,
        elem_classes="ddviz-viewer-panel",
    )


def control_bar(session: Session) -> gr.HTML:
    """Generate, Pause, Step, Resume, Stop and the engine's state.

    Its value is {"error": why Python refused, or None, "nonce": n}. Its events for Python: `generate` and
    `generate_step` (begin a run), `run` (the current run is another one than this page last saw), `model`
    (the engine offers something else than it did).
    """
    return gr.HTML(
        {"error": None, "nonce": 0},
        html_template='<section class="ddviz-bar" aria-label="Engine"></section>',
        js_on_load=script("control_bar.js"),
        server_functions=[served(status_function(session)), served(control_function(session))],
        apply_default_css=False,
    )


def request_list(session: Session) -> gr.HTML:
    """What clients of a server asked, as the list grows. Its event: `open` {"trace": id}, one was chosen."""
    return gr.HTML(
        {},
        html_template='<section class="ddviz-requests" aria-label="Requests of this server"></section>',
        js_on_load=script("request_list.js"),
        server_functions=[served(requests_function(session))],
        apply_default_css=False,
    )


def sample_list(session: Session) -> gr.HTML:
    """The samples, while the viewer panel that comes next is empty. Its event: `open` {"trace": id}."""
    return gr.HTML(
        {},
        html_template='<section class="ddviz-samples" aria-label="Samples"></section>',
        js_on_load=script("sample_list.js"),
        server_functions=[served(samples_function(session))],
        apply_default_css=False,
        elem_classes="ddviz-samples-panel",
    )


def notice_panel(value: Answer | None = None) -> gr.HTML:
    """A line of plain text: {"text": sentence, "error": bool}."""
    return gr.HTML(
        value or {"text": "", "error": False},
        html_template='<p class="ddviz-notice" role="status"></p>',
        js_on_load=script("notice.js"),
        apply_default_css=False,
    )


def script(name: str, before: str = "") -> str:
    return f"{before}\n{(HERE / name).read_text('utf-8')}"


def poll_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def poll(request: Answer) -> Answer:
        trace_id, since = trace_id_of(request), index_of(request, "since")
        growing = session.growing(trace_id)

        def view(trace: Trace) -> Answer:
            answer = poll_view(trace, since)
            if not growing and trace.end is None and not trace.damage and not trace.unread:
                answer["damage"] = (
                    f"no end was recorded: the engine was cut off after {len(trace.steps)} steps"
                )
            return answer

        answer = session.registry.view(
            trace_id, view, growing, lambda trace: len(trace.steps) >= since + MAX_ROWS
        ) or empty_view(since)
        status = {"status": status_dict(session.status())} if growing else {}
        return {**answer, "growing": growing, **status}

    return poll


def step_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def step(request: Answer) -> Answer:
        trace_id, index = trace_id_of(request), index_of(request, "index")

        def view(trace: Any) -> Answer:
            if index >= len(trace.steps):
                raise DdvizError(f"there is no step {index}; the trace has {len(trace.steps)} so far")
            return step_view(trace, index)

        return session.registry.view(
            trace_id, view, session.growing(trace_id), lambda trace: len(trace.steps) > index
        ) or {"error": f"there is no step {index}; the trace has not begun"}

    return step


def sizes_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def sizes(request: Answer) -> Answer:
        return export.sizes(session, request)

    return sizes


def export_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def exported(request: Answer) -> Answer:
        return export.exported(session, request)

    return exported


VIEWER_FUNCTIONS = (
    *(poll_function, step_function, batch_function, findings_function),
    *(sizes_function, export_function),
)


def status_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def status(request: Answer) -> Answer:
        now, log = session.status(), session.log()
        return {
            **status_dict(now),
            "model": msgspec.to_builtins(now.model),
            "run": session.viewer_value(),
            "logged": len(log) > 0,
            "log": log if request.get("log") is True else [],
        }

    return status


def requests_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def requests(request: Answer) -> Answer:
        return {"requests": [found._asdict() for found in session.registry.requests()]}

    return requests


def control_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def control(request: Answer) -> Answer:
        action = request.get("action")
        session.control(action if isinstance(action, str) else "")
        return {"done": True}

    return control
