"""The rule of the file itself: do its events stand in the order that the format promises?

In:  TraceView; of the trace, the kinds of its events as they were met.
Out: Fault.
Not here: whether steps are missing (rules_chain.py: `incomplete`, `step-index`), what an event holds.
"""

from collections.abc import Iterator

from ddviz.check.rules import Fault, trace_rule
from ddviz.check.views import TraceView

ONCE = ("header", "prompt", "end")


@trace_rule(
    cause="the engine's recorder calls come in another order, one is missing, or two traces lie in one file",
    look_at="the order of the Recorder's calls; zstdcat FILE | jq -r .event; docs/trace-format.md",
)
def event_order(view: TraceView) -> Iterator[Fault]:
    """Events stand in the format's order: header, prompt, prefill, then steps, and the end last.

    Header, prompt and end stand once. A `tokens` event comes before the first event that names a token id; it
    may be empty, where no id has a text.
    """
    kinds = view.trace.kinds
    for kind in ONCE:
        if (count := kinds.count(kind)) > 1:
            yield Fault(f"there are {count} {kind} events, must be 1")
    first = {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}
    told: set[str] = set()
    for kind, needed in _needs(view).items():
        for other in needed:
            if kind in first and other not in told and first.get(other, len(kinds)) > first[kind]:
                told.add(other)  # by the first kind that needs it
                yield Fault(f"the first {kind} has no {other} before it{_later(first, other)}")
    if "end" in first and (after := kinds[first["end"] + 1 :]) and set(after) != {"end"}:
        yield Fault(f"{len(after)} events come after the end, the first is {after[0]}")


def _needs(view: TraceView) -> dict[str, tuple[str, ...]]:
    """What must stand before the first event of a kind. Token bytes only before one that names a token."""
    prompt, end = view.trace.prompt, view.trace.end
    return {
        "prompt": ("tokens",) if prompt is not None and prompt.token_ids else (),
        "prefill": ("tokens", "prompt"),
        "step": ("tokens", "prompt", "prefill"),
        # a request that came to nothing has an end alone
        "end": ("tokens", "prompt", "prefill") if end is not None and end.output_ids else (),
    }


def _later(first: dict[str, int], kind: str) -> str:
    return f": it comes later, as event {first[kind]}" if kind in first else ": there is none"
