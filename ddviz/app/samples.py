"""What the list of samples asks for, which stands in Replay as long as no trace is open.

In:  the samples of the registry.
Out: {"samples": [{id, title, about, facts}]}, facts in a few words: DDTREE · budget 16 · 58 steps.
Not here: opening one (replay.py), the list (sample_list.js).
"""

from collections.abc import Callable
from typing import Any

from ddviz.app.requests import Answer, answering
from ddviz.app.session import Session
from ddviz.app.traces import Entry
from ddviz.errors import DdvizError
from ddviz.trace import Trace
from ddviz.tree import is_greedy


def samples_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def samples(request: Answer) -> Answer:
        return {"samples": [_sample(session, entry) for entry in session.registry.samples()]}

    return samples


def _sample(session: Session, entry: Entry) -> Answer:
    try:
        facts = session.registry.view(entry.id, facts_of, enough=lambda trace: True)
    except DdvizError:
        facts = None  # it is listed all the same: who opens it is told what is wrong
    return {"id": entry.id, "title": entry.title, "about": entry.about, "facts": facts or ""}


def facts_of(trace: Trace) -> str:
    """What ran, with what tree and temperature, for how many steps; those of a long file are not counted."""
    header, sampling = trace.header, trace.header.sampling
    facts = [
        header.algorithm,
        header.budget is not None and f"budget {header.budget}",
        header.topk_cap is not None and f"cap {header.topk_cap or 'none'}",
        "greedy"
        if is_greedy(sampling.temperature, sampling.top_k)
        else f"temperature {sampling.temperature:g}",
        not trace.unread and f"{len(trace.steps)} steps",
    ]
    return " · ".join(fact for fact in facts if fact)
