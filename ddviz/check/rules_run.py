"""Rules over a whole run: what only shows from many steps, or from the traces of other requests beside it.

In:  TraceView, FolderView.
Out: Fault.
Not here: whether the output hangs together (rules_chain.py).
"""

from collections.abc import Iterator
from itertools import groupby
from statistics import median
from typing import NamedTuple

from ddviz.check.gtest import chi2_sf
from ddviz.check.rules import DRAFTED, Fault, folder_rule, trace_rule
from ddviz.check.views import COIN_BINS, FolderView, Outline, TraceView

COLLAPSE = 32  # steps in a row that accept nothing
LEAST_COINS = 20 * COIN_BINS
COIN_ALARM = 1e-9  # false alarms a trace
PAUSE = 10  # times its usual time that one stage takes
SLOWDOWN = 3  # times as long as before, for a while
WHILE = 8  # steps


@trace_rule(
    cause="the row of the slot table was overwritten or reused, or the step began at another length than was "
    "committed",
    look_at="slots, commit.dst_slots of the step named; in SGLang req_to_token of the request's row",
)
def kept_slots(view: TraceView) -> Iterator[Fault]:
    """A step writes no slot in which the KV of an earlier step was committed."""
    kept: dict[int, int] = {}  # slot -> step
    last = -1
    for place, outline in enumerate(view.outlines):
        if place in view.restarts:
            kept.clear()
        if not outline.sound or outline.index <= last:  # rule step-index
            continue
        last = outline.index
        node = next((node for node, slot in enumerate(outline.slots) if slot in kept), None)
        if node is not None:
            slot = outline.slots[node]
            yield Fault(
                f"slots[{node}] = {slot} holds KV that step {kept[slot]} committed", node, outline.index
            )
        kept.update(dict.fromkeys(outline.kept, outline.index))


@trace_rule(
    cause="the engine's counter wrapped around, or the step of another run or request was recorded",
    look_at="batch.id",
)
def batch_order(view: TraceView) -> Iterator[Fault]:
    """The number of a step's forward is higher than that of the step before."""
    for before, after in view.pairs():
        if before.batch is not None and after.batch is not None and after.batch.id <= before.batch.id:
            yield Fault(
                f"batch.id is {after.batch.id}, that of step {before.index} was {before.batch.id}",
                step=after.index,
            )


@folder_rule(
    cause="a row of the slot table was reused, or slots were freed, while the request that holds them still "
    "ran (overlap scheduling)",
    look_at="slots and batch.id of both traces; in SGLang req_to_token of both rows, and the allocator",
)
def shared_slots(view: FolderView) -> Iterator[Fault]:
    """No step writes a KV slot of another request: of the same forward, or committed by one still running.

    Traces of a folder are taken for one server's where engine and models are the same, both were under way at
    the same time, and the forwards that both name agree in size, width and rows. Slots that were shared
    before the first step (a prefix cache) are not recorded.
    """
    for server in view.servers():
        yield from _clashes(view, server)


@trace_rule(
    cause="the drafter's weights or features are wrong, its cache has a hole, or verification refuses all",
    look_at="draft.top_ids against target.raw.argmax at depth 1; hidden states handed to the drafter; audit",
    algorithms=DRAFTED,
    severity="notice",
)
def accept_collapse(view: TraceView) -> Iterator[Fault]:
    """Of 32 steps in a row, one accepts something."""
    run: list[Outline] = []
    for outline in view.outlines:
        if outline.num_accepted:
            run = []
        else:
            run.append(outline)
        if outline.num_accepted == 0 and len(run) == COLLAPSE:
            known = [one.drafted for one in run if one.drafted is not None]
            yield Fault(
                f"the accept length is 1 in {COLLAPSE} steps, from here to step {outline.index}; the "
                f"target's argmax was among the drafter's candidates in {sum(known)} of {len(known)}",
                step=run[0].index,
                cause=_why_collapsed(sum(known), len(known)),
            )


@trace_rule(
    cause="coins come from another distribution than the uniform one, or the same ones are used in many "
    "steps: the output is not distributed as the target's",
    look_at="sampling.coins, sampling.final_coin; the uniform samples that the acceptance kernel was given; "
    "ddviz losslessness",
)
def coin_bias(view: TraceView) -> Iterator[Fault]:
    """The coins of a run are spread evenly over [0, 1): chi-square over eight equal parts, p above 1e-9.

    Traces with fewer than 160 coins are not looked at.
    """
    counted = [outline.coins for outline in view.outlines if outline.coins]
    counts = [sum(counts) for counts in zip(*counted, strict=True)]
    total = sum(counts)
    if total < LEAST_COINS:
        return
    expected = total / COIN_BINS
    p = chi2_sf(sum((count - expected) ** 2 / expected for count in counts), COIN_BINS - 1)
    if p < COIN_ALARM:
        worst = max(range(COIN_BINS), key=lambda part: abs(counts[part] - expected))
        yield Fault(
            f"{counts[worst] / total:.1%} of {total:,} coins lie in [{worst / COIN_BINS:g}, "
            f"{(worst + 1) / COIN_BINS:g}), where {1 / COIN_BINS:.1%} should (p = {p:.0e})"
        )


@trace_rule(
    cause="the machine was busy or paused, a shape was met for the first time, or the engine left its fast "
    "path (a graph, a fused kernel)",
    look_at="times_us, batch.mode and batch.size around the step; the engine's log at that time",
    severity="notice",
)
def stage_time(view: TraceView) -> Iterator[Fault]:
    """No stage takes ten times its median, nor for eight steps three times as long as in the eight before.

    Only what makes a step three times as long counts, or half as long again for eight steps. The first step,
    which warms the engine up, and traces below 16 steps are not looked at.
    """
    sound = [outline for outline in view.outlines[1:] if outline.sound and outline.times_us]
    if len(sound) < 2 * WHILE - 1:
        return
    usual = median(sum(outline.times_us.values()) for outline in sound)
    for stage in dict.fromkeys(name for outline in sound for name in outline.times_us):
        timed = [(outline, outline.times_us[stage]) for outline in sound if stage in outline.times_us]
        times = [time for _, time in timed]
        middle = median(times)
        for outline, time in timed:
            if time >= PAUSE * middle and time - middle > 2 * usual:
                yield Fault(f"{stage} took {_ms(time)}, its median is {_ms(middle)}", step=outline.index)
        place = _slower_from(times, usual / 2)
        if place is not None:
            before, after = times[place - WHILE : place], times[place : place + WHILE]
            yield Fault(
                f"{stage} takes {_ms(median(after))} from here on, {_ms(median(before))} in the steps before",
                step=timed[place][0].index,
            )


class _Write(NamedTuple):
    """A step's part in a forward."""

    forward: int
    trace: int
    outline: Outline
    until: int  # the last forward of the request, or before it was prefilled again


def _clashes(view: FolderView, server: list[int]) -> Iterator[Fault]:
    """For each step the first slot that is another request's, forward by forward."""
    held: dict[int, _Write] = {}  # by slot, what committed its KV
    writes = sorted((write for place in server for write in _writes(view, place)), key=lambda w: w[:2])
    for forward, together in groupby(writes, key=lambda write: write.forward):
        now: dict[int, _Write] = {}
        steps = list(together)
        for write in steps:
            for node, slot in enumerate(write.outline.slots):
                other = now.setdefault(slot, write)
                if other is write and slot in held and held[slot].until >= forward:
                    other = held[slot]
                if other.trace != write.trace:
                    how = "writes in the same forward" if other.forward == forward else "committed and holds"
                    yield Fault(
                        f"slots[{node}] = {slot} is one that {view.residents[other.trace].name}, step "
                        f"{other.outline.index}, {how}",
                        node,
                        write.outline.index,
                        trace=write.trace,
                    )
                    break
        for write in steps:
            held.update(dict.fromkeys(write.outline.kept, write))


def _writes(view: FolderView, place: int) -> list[_Write]:
    resident = view.residents[place]
    until, found = -1, list[_Write]()
    for at in reversed(range(len(resident.outlines))):
        outline = resident.outlines[at]
        if outline.batch is not None and outline.sound:
            until = max(until, outline.batch.id)
            found.append(_Write(outline.batch.id, place, outline, until))
        if at in resident.restarts:
            until = -1
    return found


def _why_collapsed(hits: int, known: int) -> str | None:
    if not known:
        return None
    if hits < known / 4:
        return (
            "the drafter guesses blindly: hidden states of a wrong layer, offset or request, an empty or "
            "stale cache, or wrong weights"
        )
    return "the drafter has the right tokens and verification refuses them: links, mask, positions or KV"


def _slower_from(times: list[float], least: float) -> int | None:
    """The first place from which a stage takes longer for a while."""
    for place in range(WHILE, len(times) - WHILE + 1):
        if times[place] < SLOWDOWN * times[place - 1]:  # it begins with a jump; cheap for long traces
            continue
        before, after = median(times[place - WHILE : place]), median(times[place : place + WHILE])
        if after >= SLOWDOWN * before and after - before > least:
            return place
    return None


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.4g} ms"
