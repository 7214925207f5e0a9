"""`ddviz temptest` on a terminal and as JSON.

In:  a Report.
Out: a rich table, with bars for a sweep; a dict for JSON.
"""

import time
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddviz.temptest import Report, Row

STYLES = {"PASS": "green", "FAIL": "bold red", "NOT CHECKED": "yellow", "": ""}
BAR = 24  # characters of the fastest


def render(report: Report) -> RenderableType:
    model = report.model
    title = Text(
        f"{model.target} on {model.device}, {model.dtype}" + (f" ({model.note})" if model.note else ""),
        "bold",
    )
    return Group(title, _sweep(report.rows) if report.kind == "sweep" else Text(), _checks(report))


def as_dict(report: Report) -> dict[str, Any]:
    return {
        "kind": report.kind,
        "clean": report.is_clean,
        "date": time.strftime("%Y-%m-%d"),
        "model": msgspec.to_builtins(report.model),
        "rows": [_row_dict(row) for row in report.rows],
    }


def _checks(report: Report) -> Table:
    table = _table("check", "verdict", "accept length", "tokens/s", "what was seen")
    for row in report.rows:
        if report.kind == "sweep" and not row.verdict:
            continue
        length, speed = _figures(row)
        table.add_row(
            row.name,
            Text(row.verdict, STYLES[row.verdict]),
            _number(length, 2),
            _number(speed, 1),
            Text(row.says),
        )
    return table


def _sweep(rows: list[Row]) -> Table:
    """A bar per setting, tokens/s; the fastest of each temperature in green."""
    table = _table("T", "budget-cap", "accept length", "tokens/s", "")
    speeds = {id(row): _figures(row)[1] or 0.0 for row in rows}
    fastest = max(speeds.values(), default=0.0) or 1.0
    before = None
    for row in rows:
        if row.verdict or row.temperature is None:
            continue
        best = max(speeds[id(other)] for other in rows if other.temperature == row.temperature)
        length, speed = _figures(row)
        table.add_row(
            f"{row.temperature:g}" if row.temperature != before else "",
            row.name,
            _number(length, 2),
            _number(speed, 1),
            Text("█" * round(BAR * speeds[id(row)] / fastest), "green" if speed == best else "blue"),
        )
        before = row.temperature
    return table


def _row_dict(row: Row) -> dict[str, Any]:
    length, speed = _figures(row)
    return {
        "name": row.name,
        "verdict": row.verdict or None,
        "says": row.says,
        "temperature": row.temperature,
        "accept_length": None if length is None else round(length, 4),
        "tokens_per_s": None if speed is None else round(speed, 2),
        "traces": [str(trace.path) for trace in row.traces],
    }


def _figures(row: Row) -> tuple[float | None, float | None]:
    """Accept length and tokens/s."""
    group = row.figures
    return (None, None) if group is None or not group.steps else (group.accept_length, group.tokens_per_s)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        right = column in ("accept length", "tokens/s")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "what was seen")
    return table
