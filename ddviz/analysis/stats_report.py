"""`ddviz stats` on a terminal and as JSON.

In:  Stats.
Out: rich renderables; a dict for JSON.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddviz.analysis.stats import DepthCount, Group, RankCount, Stats
from ddviz.trace.schema import STAGES

SHOWN_RANKS = 16  # on a terminal; JSON has all
BAR = 20  # characters of a rate of 1


def as_dict(stats: Stats) -> dict[str, Any]:
    return {
        "groups": [_group_dict(group) for group in stats.groups],
        "all": _group_dict(stats.all),
        "notes": stats.notes,
    }


def render(stats: Stats) -> RenderableType:
    """Runs, then by depth, by rank, by temperature at each depth, and time per stage."""
    parts: list[RenderableType] = [_runs(stats)]
    drafted = [
        group for group in stats.groups if group.depths and sum(d.nodes for d in group.depths.values())
    ]
    if drafted:
        parts += [_depths(stats.all), _ranks(stats.all)]
    if len({group.temperature for group in drafted}) > 1:
        parts.append(_temperatures(drafted))
    if stats.all.stages_us:
        parts.append(_stages(stats.groups))
    parts += [Text(note, "yellow") for note in stats.notes]
    if stats.all.odd_steps:
        parts.append(
            Text(f"{stats.all.odd_steps} steps are left out by depth and rank; run: ddviz doctor", "yellow")
        )
    return Lines(*(line for part in parts for line in (part, Text())))


def _runs(stats: Stats) -> Table:
    table = _table(
        "Runs",
        "setting",
        "T",
        "traces",
        "steps",
        "tokens",
        "tokens/step",
        "accept length",
        "ms/step",
        "tokens/s",
    )
    for group in stats.groups + ([stats.all] if len(stats.groups) > 1 else []):
        timed = group.tokens_per_s is not None
        table.add_row(
            group.setting,
            "" if group.temperature is None else f"{group.temperature:g}",
            str(group.traces),
            str(group.steps),
            str(group.emitted),
            f"{group.tokens_per_step:.2f}",
            f"{group.accept_length:.2f}",
            f"{group.timed_us / group.steps / 1000:.1f}" if timed else "",
            f"{group.tokens_per_s:.1f}" if timed else "",
        )
    return table


def _depths(group: Group) -> Table:
    table = _table(
        "Acceptance by depth", "depth", "nodes/step", "reached", "examined", "accepted", "rate", "", "share"
    )
    for depth, count in sorted(group.depths.items()):
        if count.reached and count.nodes:
            _add(table, depth, count, group.steps, group.steps)
    return table


def _ranks(group: Group) -> Table:
    table = _table("Acceptance by rank", "rank", "nodes/step", "examined", "accepted", "rate", "", "share")
    taken = _taken(group)
    for rank, count in sorted(group.ranks.items())[:SHOWN_RANKS]:
        _add(table, rank, count, group.steps, taken)
    return table


def _add(table: Table, place: int, count: DepthCount | RankCount, steps: int, whole: int) -> None:
    rate = _rate(count)
    table.add_row(
        str(place),
        f"{count.nodes / steps:.1f}",
        *([str(count.reached)] if isinstance(count, DepthCount) else []),
        str(count.examined),
        str(count.accepted),
        _percent(rate),
        Text("█" * round(BAR * (rate or 0)), "green"),
        _percent(count.accepted / whole if whole else None),
    )


def _temperatures(groups: list[Group]) -> Table:
    """The rate at each depth, a column per setting and temperature."""
    names = [f"{group.setting} T={group.temperature:g}" for group in groups]
    table = _table("Rate by depth and temperature", "depth", *names)
    deepest = max(depth for group in groups for depth, count in group.depths.items() if count.examined)
    for depth in range(1, deepest + 1):
        rates = [_rate(group.depths[depth]) if depth in group.depths else None for group in groups]
        table.add_row(str(depth), *map(_percent, rates))
    return table


def _stages(groups: Iterable[Group]) -> Table:
    table = _table("Time per stage, ms", "setting", "T", "stage", "median", "mean", "p95", "of the step")
    for group in groups:
        whole = sum(sum(times) for times in group.stages_us.values())
        for stage in _in_order(group):
            times = np.array(group.stages_us[stage]) / 1000
            first = stage == _in_order(group)[0]
            table.add_row(
                group.setting if first else "",
                f"{group.temperature:g}" if first else "",
                stage,
                f"{np.median(times):.2f}",
                f"{times.mean():.2f}",
                f"{np.percentile(times, 95):.2f}",
                _percent(float(times.sum()) * 1000 / whole if whole else None),
            )
    return table


def _group_dict(group: Group) -> dict[str, Any]:
    return {
        "setting": group.setting,
        "temperature": group.temperature,
        "traces": group.traces,
        "steps": group.steps,
        "tokens": group.emitted,
        "tokens_per_step": round(group.tokens_per_step, 4),
        "accept_length": round(group.accept_length, 4),
        "tokens_per_s": None if group.tokens_per_s is None else round(group.tokens_per_s, 2),
        "steps_left_out": group.odd_steps,
        "by_depth": [
            {"depth": depth, "nodes": count.nodes, "reached": count.reached, **_counts(count, group.steps)}
            for depth, count in sorted(group.depths.items())
            if count.nodes
        ],
        "by_rank": [
            {"rank": rank, "nodes": count.nodes, **_counts(count, _taken(group))}
            for rank, count in sorted(group.ranks.items())
        ],
        "stages_ms": {
            stage: {
                "median": round(float(np.median(group.stages_us[stage])) / 1000, 4),
                "mean": round(float(np.mean(group.stages_us[stage])) / 1000, 4),
                "p95": round(float(np.percentile(group.stages_us[stage], 95)) / 1000, 4),
                "steps": len(group.stages_us[stage]),
            }
            for stage in _in_order(group)
        },
    }


def _taken(group: Group) -> int:
    """Accepted nodes whose rank is known."""
    return sum(count.accepted for count in group.ranks.values())


def _counts(count: DepthCount | RankCount, whole: int) -> dict[str, Any]:
    rate = _rate(count)
    return {
        "examined": count.examined,
        "accepted": count.accepted,
        "rate": None if rate is None else round(rate, 4),
        "share": round(count.accepted / max(1, whole), 4),
    }


def _rate(count: DepthCount | RankCount) -> float | None:
    return count.accepted / count.examined if count.examined else None


def _in_order(group: Group) -> list[str]:
    known = [stage for stage in STAGES if stage in group.stages_us]
    return known + [stage for stage in group.stages_us if stage not in STAGES]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _table(title: str, *columns: str) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
    for column in columns:
        left = column in ("setting", "stage", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    return table
