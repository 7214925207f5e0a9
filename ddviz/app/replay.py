"""The Replay tab: a sample, a saved run or a dropped file, in the same viewer. Needs no engine."""

from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from ddviz.app.panels import QUIET, notice_panel, sample_list, viewer_panel
from ddviz.app.session import Session
from ddviz.app.traces import Entry, Registry
from ddviz.errors import DdvizError

WELCOME = "Pick a sample, pick a saved run, or drop a .ddviz file."
LEFT_EMPTY = [gr.skip()] * 3  # a picker tells its value also when Tab leads on from it: nothing was picked


class ReplayTab(NamedTuple):
    """What a page asks when it opens, and where a link is shown."""

    fill: Any  # fills the lists
    lists: list[Any]
    shown: list[Any]  # viewer, notice, both pickers


def replay_tab(session: Session, tab: gr.Tab) -> ReplayTab:
    """Build the tab."""
    registry = session.registry
    with gr.Column(elem_classes="ddviz-replay"):
        with gr.Row(elem_classes="ddviz-pickers"):
            sample = gr.Dropdown(_choices(registry.samples()), value=None, label="Sample", min_width=220)
            saved = gr.Dropdown(_choices(registry.saved_runs()), value=None, label="Saved run", min_width=220)
            file = gr.File(
                label="Trace file", type="filepath", height=36, min_width=200, elem_classes="ddviz-drop"
            )
        notice = notice_panel({"text": WELCOME, "error": False})
        samples = sample_list(session)
        viewer = viewer_panel(session, "Recorded run")
    _connect(session, tab, sample, saved, file, notice, viewer)

    def open_listed(event: gr.EventData) -> list[Any]:  # Gradio looks at the annotation
        return open_sample(session, (event._data or {}).get("trace"))

    samples.open(open_listed, None, [viewer, notice, sample, saved], **QUIET)

    def fill() -> list[Any]:
        return [gr.update(choices=_choices(entries)) for entries in _lists(registry)]

    return ReplayTab(fill, [sample, saved], [viewer, notice, sample, saved])


def open_trace(session: Session, trace_id: str, about: str = "") -> tuple[Any, Any]:
    """Viewer value and notice of a picked trace; one that can't be read leaves the viewer as it is."""
    try:
        session.registry.view(trace_id, lambda trace: None, session.growing(trace_id), lambda trace: True)
    except DdvizError as error:
        return gr.skip(), {"text": str(error), "error": True}
    return session.value_of(trace_id, session.next_nonce()), {"text": about, "error": False}


def open_sample(session: Session, trace_id: Any) -> list[Any]:
    """Viewer value, notice and both pickers for a sample that was clicked; nothing but a sample is opened."""
    entries = session.registry.samples()
    entry = next((entry for entry in entries if entry.id == trace_id), None)
    if entry is None:
        gone = {"text": "This sample is not here any more; pick another.", "error": True}
        return [gr.skip(), gone, gr.skip(), gr.skip()]
    shown = open_trace(session, entry.id, entry.about)
    return [*shown, gr.update(choices=_choices(entries), value=entry.id), None]


def open_upload(session: Session, path: str) -> tuple[Any, Any]:
    try:
        trace_id = session.registry.add_upload(Path(path))
    except DdvizError as error:
        return gr.skip(), {"text": str(error), "error": True}
    return open_trace(session, trace_id)


def _connect(
    session: Session, tab: Any, sample: Any, saved: Any, file: Any, notice: Any, viewer: Any
) -> None:
    registry = session.registry

    def pick_sample(trace_id: str | None) -> list[Any]:
        if not trace_id:
            return LEFT_EMPTY
        about = next((entry.about for entry in registry.samples() if entry.id == trace_id), "")
        return [*open_trace(session, trace_id, about), None]

    def pick_saved(trace_id: str | None) -> list[Any]:
        if not trace_id:
            return LEFT_EMPTY
        return [*open_trace(session, trace_id), None]

    def drop(file: dict[str, Any] | None) -> list[Any]:
        path = str((file or {}).get("path") or "")  # one that an upload was given (guard.py)
        return [*open_upload(session, path), None, None, None]  # the field is free for the next file

    sample.input(pick_sample, sample, [viewer, notice, saved], **QUIET)
    saved.input(pick_saved, saved, [viewer, notice, sample], **QUIET)
    file.upload(drop, file, [viewer, notice, sample, saved, file], **QUIET)
    tab.select(lambda: gr.update(choices=_choices(registry.saved_runs())), None, saved, **QUIET)


def _lists(registry: Registry) -> list[list[Entry]]:
    return [registry.samples(), registry.saved_runs()]


def _choices(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.title, entry.id) for entry in entries]
