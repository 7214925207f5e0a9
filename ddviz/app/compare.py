"""The Compare tab: two recorded traces side by side, aligned by token position. Needs no engine.

In:  two traces from the pickers, or named by a link.
Out: the value of the compare panel: both as the viewer panel takes them.
Not here: the alignment (analysis/diff.py), drawing (viewer/compare.js, compare_panel.js).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gradio as gr

from ddviz.analysis.diff import Side, diff
from ddviz.app.panels import QUIET, notice_panel, stage_panel
from ddviz.app.requests import Answer, answering
from ddviz.app.session import Session
from ddviz.app.traces import Entry
from ddviz.errors import DdvizError
from ddviz.trace import Trace

WELCOME = "Pick two traces: of one prompt with two settings, say, or of two engines."


class CompareTab(NamedTuple):
    shown: list[Any]  # panel, notice, both pickers


def compare_tab(session: Session, tab: gr.Tab) -> CompareTab:
    """Build the tab."""
    with gr.Column(elem_classes="ddviz-replay ddviz-compare"):
        with gr.Row(elem_classes="ddviz-pickers"):
            one = gr.Dropdown(choices(session), value=None, label="A", min_width=220)
            other = gr.Dropdown(choices(session), value=None, label="B", min_width=220)
        notice = notice_panel({"text": WELCOME, "error": False})
        panel = compare_panel(session)

    show = functools.partial(show_pair, session)
    for picker in (one, other):
        picker.input(show, [one, other], [panel, notice], **QUIET)
    tab.select(lambda: [gr.update(choices=choices(session))] * 2, None, [one, other], **QUIET)
    return CompareTab([panel, notice, one, other])


def show_pair(session: Session, a: str | None, b: str | None) -> list[Any]:
    """Panel value and notice for two picked traces; one that can't be read leaves the panel as it is."""
    if not a or not b:
        return [gr.skip(), {"text": WELCOME, "error": False}]
    try:
        for trace_id in (a, b):
            session.registry.view(trace_id, lambda trace: None, session.growing(trace_id))
    except DdvizError as error:
        return [gr.skip(), {"text": str(error), "error": True}]
    nonce = session.next_nonce()
    value = {"a": session.value_of(a, nonce), "b": session.value_of(b, nonce), "nonce": nonce}
    return [value, {"text": "", "error": False}]


def compare_panel(session: Session) -> gr.HTML:
    """Shows the two traces of its value {"a", "b", "nonce"}."""
    return stage_panel(session, "Two traces side by side", "compare_panel.js", (compare_function,))


def compare_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def compare(request: Answer) -> Answer:
        """The alignment as viewer/compare.js takes it: stops are [position, step of a, step of b]."""
        a, b = (_trace(session, request.get(name)) for name in ("a", "b"))
        found = diff(a, b)
        facts = {"same_prompt": found.same_prompt, "common": found.common, "parts_at": found.parts_at}
        sides = {"a": _side(a, found.a, found.parts_at), "b": _side(b, found.b, found.parts_at)}
        return {**facts, "stops": found.stops, **sides}

    return compare


def _trace(session: Session, trace_id: Any) -> Trace:
    if not isinstance(trace_id, str) or len(trace_id) > 64:
        raise DdvizError("a and b must be the ids of open traces")
    trace = session.registry.view(trace_id, lambda trace: trace, session.growing(trace_id))
    if trace is None:
        raise DdvizError("one of the traces has not begun")
    return trace


def _side(trace: Trace, side: Side, parts_at: int | None) -> Answer:
    """One trace, and where in it the texts part: a step and the place of the token in what it emitted."""
    parting = None
    if parts_at is not None:
        step = side.step_at(parts_at)
        place = None if step is None else parts_at - side.starts[step]
        parting = {"label": trace.tokens.label(side.tokens[parts_at]), "step": step, "place": place}
    return {
        "name": trace.name,
        "tokens": len(side.tokens),
        "starts": side.starts,
        "accept_lengths": side.accept_lengths,
        "ms": side.ms,
        "parting": parting,
    }


def choices(session: Session) -> list[tuple[str, str]]:
    registry = session.registry
    return [_choice("sample", entry) for entry in registry.samples()] + [
        _choice("run", entry) for entry in registry.saved_runs()
    ]


def _choice(kind: str, entry: Entry) -> tuple[str, str]:
    return f"{kind} · {entry.title}", entry.id
