"""Rules of stage 5, commit, and from one step to the next: does the output hang together?

In:  StepView for the commit, TraceView for the chain.
Out: Fault.
Not here: what happens inside a step before the commit (rules_structure.py, rules_draft.py, rules_accept.py).
"""

from collections.abc import Iterator

from ddviz.check.rules import Fault, step_rule, trace_rule
from ddviz.check.views import Outline, StepView, TraceView
from ddviz.trace.schema import Dropped


@step_rule(
    cause="accepted KV was left at its tree slots or moved from wrong ones: the next step reads the front",
    look_at="commit.src_slots, commit.dst_slots, slots; the KV move after verify",
)
def commit(view: StepView) -> Iterator[Fault]:
    """The KV of the accepted nodes goes from their slots to the step's first slots, and is then committed."""
    moved, slots, step = view.step.commit, view.step.slots, view.step
    if moved is None:
        return
    count = len(step.accept.index)
    if moved.committed_len != step.prefix_len + count:
        yield Fault(
            f"committed_len is {moved.committed_len}, must be {step.prefix_len + count} "
            f"(prefix_len {step.prefix_len} + {count} nodes of the path)"
        )
    wanted = {"dst_slots": slots[:count]} if slots is not None else {}
    if slots is not None and view.path is not None:
        wanted["src_slots"] = [slots[node] for node in view.path]
    for name, expected in wanted.items():
        found = getattr(moved, name)
        if found != expected:
            yield Fault(f"{name} is {_short(found)}, must be {_short(expected)}")


@step_rule(
    cause="rows of rejected nodes were appended, or accepted ones left out: the drafter then sees a hole",
    look_at="commit.draft_kv_positions, commit.draft_kv_rows; the features handed to the drafter",
)
def draft_kv(view: StepView) -> Iterator[Fault]:
    """The drafter's KV grows by the accepted path: positions prefix_len, prefix_len + 1 ... with no hole."""
    moved, step = view.step.commit, view.step
    if moved is None or moved.draft_kv_positions is None:
        return
    found = moved.draft_kv_positions
    expected = [step.prefix_len + place for place in range(len(step.accept.index))]
    if found != expected:
        yield Fault(f"draft_kv_positions is {_short(found)}, must be {_short(expected)}")
    elif moved.draft_kv_rows is not None and moved.draft_kv_rows != expected[-1] + 1:
        yield Fault(f"draft_kv_rows is {moved.draft_kv_rows}, must be {expected[-1] + 1}")


@step_rule(
    cause="the request's row of the slot table has less headroom than a step writes: near the context's end "
    "the write lands in a neighbour's row",
    look_at="commit.reserved_len, commit.row_width, batch.q_len",
)
def row_width(view: StepView) -> Iterator[Fault]:
    """A step writes no more rows than are reserved, and no more are reserved than the request owns."""
    moved = view.step.commit
    if moved is None or moved.reserved_len is None:
        return
    written = view.step.prefix_len + view.width
    if written > moved.reserved_len:
        yield Fault(f"the step writes up to row {written}, reserved are {moved.reserved_len}")
    if moved.row_width is not None and moved.reserved_len > moved.row_width:
        yield Fault(f"{moved.reserved_len} rows are reserved, the request owns {moved.row_width}")


@trace_rule(
    cause="the engine crashed or is still running, the disk was full, or the recorder could not keep up",
    look_at="the engine's log; trace.damage, dropped, end.message",
)
def incomplete(view: TraceView) -> Iterator[Fault]:
    """The trace is whole: no step was lost, no byte damaged, and its end event is there and no error."""
    trace = view.trace
    for dropped in trace.dropped:
        yield Fault(f"steps {dropped.first} to {dropped.last} were dropped: {dropped.reason}")
    if trace.damage is not None:
        yield Fault(trace.damage)
    elif trace.end is None and not view.growing:
        yield Fault(f"there is no end event after {len(view.outlines)} steps")
    if trace.end is not None and trace.end.finish_reason == "error":
        yield Fault(f"the engine ended the request with an error: {trace.end.message or 'no message'}")


@trace_rule(
    cause="a step was recorded twice, or lost without a dropped event",
    look_at="step.index, dropped",
)
def step_index(view: TraceView) -> Iterator[Fault]:
    """Steps are numbered 0, 1, 2 ...; a gap is told by a dropped event."""
    previous = -1
    for outline in view.outlines:
        missing = range(previous + 1, outline.index)
        if outline.index <= previous or not _covered(missing, view.trace.dropped):
            yield Fault(f"step {outline.index} comes after step {previous}", step=outline.index)
        previous = outline.index


@trace_rule(
    cause="the bonus was read from the wrong place, or the next step began before it was known",
    look_at="accept.bonus of a step, tree.tokens[0] of the next",
)
def root_chain(view: TraceView) -> Iterator[Fault]:
    """The root of a step is the bonus of the step before; after a prefill it is the prefill's token."""
    for after, token in view.after_prefill():
        if after.root != token:
            yield Fault(f"the root is {after.root}, the prefill's token was {token}", step=after.index)
    for before, after in view.pairs():
        if after.root != before.bonus:
            yield Fault(
                f"the root is {after.root}, the bonus of step {before.index} was {before.bonus}",
                step=after.index,
            )


@trace_rule(
    cause="the committed length was advanced by another number than that of the accepted nodes and the root",
    look_at="prefix_len, accept.num_accepted, commit.committed_len",
)
def prefix_chain(view: TraceView) -> Iterator[Fault]:
    """prefix_len begins as the prompt's length and grows by num_accepted + 1 with every step."""
    prompt, first = view.trace.prompt, view.outlines[0] if view.outlines else None
    at_start = first is not None and first.index == 0 and len(view.trace.prefills) == 1
    if prompt is not None and first is not None and at_start and first.prefix_len != len(prompt.token_ids):
        yield Fault(
            f"prefix_len is {first.prefix_len}, the prompt has {len(prompt.token_ids)} tokens",
            step=first.index,
        )
    for before, after in view.pairs():
        expected = before.prefix_len + before.num_accepted + 1
        if after.prefix_len != expected:
            yield Fault(
                f"prefix_len is {after.prefix_len}, must be {expected} (step {before.index}: "
                f"{before.prefix_len} + {before.num_accepted} accepted + the root)",
                step=after.index,
            )


@trace_rule(
    cause="predicts was read by local ids, with another stride, or was cut at the wrong place",
    look_at="emitted, accept.predicts, header.sampling.stop_token_ids, header.sampling.max_new_tokens",
)
def emitted(view: TraceView) -> Iterator[Fault]:
    """A step emits its predicts, cut only at a stop token or where max_new_tokens is reached."""
    most, counted = view.trace.header.sampling.max_new_tokens, view.counted
    for outline, before in zip(view.outlines, view.output_before(), strict=True):
        cut = outline.predicts[: len(outline.emitted)]
        total = before + len(outline.emitted)
        if not outline.sound:
            continue
        if outline.emitted != cut:
            yield Fault(
                f"emitted is {_short(outline.emitted)}, predicts is {_short(outline.predicts)}",
                step=outline.index,
            )
        elif most is not None and counted and total > most:
            yield Fault(f"{total} tokens are out, max_new_tokens is {most}", step=outline.index)
        elif len(cut) < len(outline.predicts) and not _may_cut(view, outline, total if counted else None):
            yield Fault(
                f"{len(cut)} of {len(outline.predicts)} tokens were emitted, with no stop token there and "
                f"{total} tokens out",
                step=outline.index,
            )


@trace_rule(
    cause="the stop was noticed late: the whole accepted path was emitted, or another step was run",
    look_at="emitted, header.sampling.stop_token_ids",
)
def after_stop(view: TraceView) -> Iterator[Fault]:
    """Nothing is emitted after a stop token."""
    stops = set(view.trace.header.sampling.stop_token_ids)
    stopped_at: int | None = None
    for token, step in view.output():
        if stopped_at is not None:
            yield Fault(f"token {token} comes after the stop token {stopped_at}", step=step)
            return
        if token in stops:
            stopped_at = token


@trace_rule(
    cause="tokens were lost or doubled between the steps and the request's own list",
    look_at="end.output_ids, emitted",
)
def output_ids(view: TraceView) -> Iterator[Fault]:
    """end.output_ids is the prefill's token and all that the steps emitted."""
    end = view.trace.end
    if end is None or not view.whole or not view.trace.prefills:
        return
    found, expected = end.output_ids, [token for token, _ in view.output()]
    if found == expected:
        return
    place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    if place is None:
        yield Fault(f"end.output_ids holds {len(found)} tokens, prefill and steps gave {len(expected)}")
    else:
        yield Fault(f"end.output_ids[{place}] is {found[place]}, prefill and steps gave {expected[place]}")


@trace_rule(
    cause="a step was taken but not recorded, or the engine counts forwards instead of steps",
    look_at="end.steps",
)
def step_count(view: TraceView) -> Iterator[Fault]:
    """end.steps is the number of steps in the trace."""
    end = view.trace.end
    if end is not None and view.whole and end.steps != len(view.outlines):
        yield Fault(f"end.steps is {end.steps}, the trace holds {len(view.outlines)} steps")


def _may_cut(view: TraceView, outline: Outline, total: int | None) -> bool:
    """Whether something explains a step that emitted less than predicted. total: tokens out, or unknown."""
    params, end, kept = view.trace.header.sampling, view.trace.end, len(outline.emitted)
    around = outline.predicts[max(kept - 1, 0) : kept + 1]  # the last token kept, the first one cut
    if set(around) & set(params.stop_token_ids):
        return True
    if total is not None and total == params.max_new_tokens:
        return True
    if outline is not view.outlines[-1]:
        return False
    # The last step may end for reasons that the trace does not hold: a stop string, the context, a user.
    return None in (end, total, params.max_new_tokens) or (end is not None and end.finish_reason != "length")


def _covered(missing: range, dropped: list[Dropped]) -> bool:
    """Whether dropped events tell of every missing index. Never walks the range: its ends may be anything."""
    cursor = missing.start
    for event in sorted(dropped, key=lambda event: event.first):
        if event.first <= cursor <= event.last:
            cursor = event.last + 1
    return cursor >= missing.stop


def _short(values: list[int], most: int = 8) -> str:
    text = ", ".join(map(str, values[:most]))
    return f"[{text}{', ...' if len(values) > most else ''}]"
