"""Links: the part of an address after its #, when a page opens with one.

In:  the fragment as viewer/link.js writes it.
Out: what the tabs, Replay and Compare are to show.
Not here: writing links (viewer/link.js), steps and panels, which the viewer reads from the address itself.
"""

from typing import Any
from urllib.parse import parse_qs

import gradio as gr

from ddviz.app.compare import choices, show_pair
from ddviz.app.replay import open_trace
from ddviz.app.session import Session
from ddviz.app.traces import Entry

LONGEST = 8192  # characters of a fragment that are read
NOTHING = [gr.skip()] * 9


def follow_link(session: Session, fragment: str | None) -> list[Any]:
    """Tab; viewer, notice and pickers of Replay; panel, notice and pickers of Compare.

    All are kept where no trace is named, or the run of the Live tab, which stays there.
    """
    fields = parse_qs(str(fragment or "")[:LONGEST].removeprefix("#"))
    if "lesson" in fields:
        return [gr.Tabs(selected="learn"), *NOTHING[1:]]  # which one, the Learn tab reads itself
    links = [fields[name][0] for name in ("trace", "with") if name in fields]
    ids = [session.registry.linked(link) for link in links]
    run = session.run.trace if session.run else None
    if not ids or "trace" not in fields or (len(ids) == 1 and ids[0] is not None and ids[0] == run):
        return NOTHING
    gone = [link for link, trace_id in zip(links, ids, strict=True) if trace_id is None]
    sentence = "".join(
        f"The link names {link:.80}, which is not here any more; pick another." for link in gone[:1]
    )
    notice = {"text": sentence, "error": True}
    if len(ids) == 2:
        shown = [gr.skip(), notice] if gone else show_pair(session, ids[0], ids[1])
        picked = [gr.update(choices=choices(session), value=trace_id) for trace_id in ids]
        return [gr.Tabs(selected="compare"), *[gr.skip()] * 4, *shown, *picked]
    lists = [session.registry.samples(), session.registry.saved_runs()]
    about = next((entry.about for entry in lists[0] if entry.id == ids[0]), "")
    shown = [gr.skip(), notice] if gone else open_trace(session, str(ids[0]), about)
    picked = [_picked(entries, ids[0]) for entries in lists]
    return [gr.Tabs(selected="replay"), *shown, *picked, *[gr.skip()] * 4]


def _picked(entries: list[Entry], trace_id: str | None) -> Any:
    """A list of Replay with the trace chosen, where it holds it."""
    return gr.update(value=trace_id if any(entry.id == trace_id for entry in entries) else None)
