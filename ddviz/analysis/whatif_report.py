"""`ddviz whatif` on a terminal and as JSON.

In:  WhatIf per recorded setting and temperature, Cost.
Out: rich renderables; a dict for JSON.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddviz.analysis.cost import Cost
from ddviz.analysis.whatif import Estimate, WhatIf

EXACT = (
    "Exact per step for the recorded continuation, at the recorded step starts; a run of its own would begin "
    "its steps elsewhere (docs/whatif.md)."
)
NO_COST = (
    "No tokens/s: what such steps cost is not known. Say it with --cost: a folder of traces of several "
    "budgets (ddviz temptest --sweep makes one), or values such as 1:100,17:190,65:400 (nodes: ms)."
)


class Row(NamedTuple):
    """One budget and cap, with what its steps cost."""

    estimate: Estimate
    name: str
    ms: float | None
    tokens_per_s: float | None
    measured: bool  # the cost lies between measured numbers of nodes


def rows_of(result: WhatIf, cost: Cost) -> list[Row]:
    rows = []
    for estimate in result.estimates:
        ms = cost.ms(estimate.mean_nodes)
        speed = estimate.accept_length / ms * 1000 if ms else None
        setting = estimate.budget, estimate.topk_cap
        name = "linear" if setting == result.linear else "{}-{}".format(*setting)
        rows.append(Row(estimate, name, ms, speed, cost.covers(estimate.mean_nodes)))
    return rows


def best_of(rows: Iterable[Row]) -> Row | None:
    """The fastest; of those, a measured cost before one beyond the measured."""
    timed = [row for row in rows if row.tokens_per_s]
    return max(timed, key=lambda row: (row.measured, row.tokens_per_s), default=None)


def render(results: list[WhatIf], cost: Cost, notes: list[str]) -> RenderableType:
    parts: list[RenderableType] = []
    for result in results:
        rows = rows_of(result, cost)
        parts += [_table(result, rows), *_sentences(result, rows, cost), Text()]
    parts += [Text(EXACT, "dim"), *(Text(note, "yellow") for note in notes)]
    return Group(*parts)


def as_dict(results: list[WhatIf], cost: Cost, notes: list[str]) -> dict[str, Any]:
    return {
        "exact": EXACT,
        "cost": {"source": cost.source, "ms": {str(n): round(ms, 3) for n, ms in cost.knots.items()}},
        "results": [_result_dict(result, cost) for result in results],
        "notes": notes,
    }


def _table(result: WhatIf, rows: list[Row]) -> Table:
    table = Table(
        title=f"From {result.recorded} at T = {result.temperature:g}: {result.traces} traces, "
        f"{result.steps} steps, accept length {result.recorded_accept_length:.2f}",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for column in ("budget-cap", "nodes", "accept length", "× recorded", "exact", "ms/step", "tokens/s"):
        table.add_column(column, justify="right", no_wrap=True)
    best = best_of(rows)
    for row in rows:
        e = row.estimate
        about = "" if row.measured else "~"
        table.add_row(
            row.name,
            f"{e.mean_nodes:.0f}",
            f"{e.accept_length:.2f}",
            f"{e.accept_length / result.recorded_accept_length:.2f}",
            "all" if not e.beyond_k + e.at_end else f"{1 - (e.beyond_k + e.at_end) / e.steps:.1%}",
            "" if row.ms is None else f"{about}{row.ms:.1f}",
            "" if row.tokens_per_s is None else f"{about}{row.tokens_per_s:.1f}",
            style="bold green" if row is best else "",
        )
    return table


def _sentences(result: WhatIf, rows: list[Row], cost: Cost) -> list[Text]:
    lines = []
    best = best_of(rows)
    if best is None:
        lines.append(Text(NO_COST, "yellow"))
    else:
        alone = cost.ms(1)
        ar = f"; autoregression {1000 / alone:.1f}" if alone else ""
        fastest = f"Fastest of these: {best.name}, {best.tokens_per_s:.1f} tokens/s{ar}"
        lines += [Text(fastest, "bold green"), Text(f"ms/step: {cost.source}", "dim")]
        if not all(row.measured for row in rows if row.ms):
            lines.append(Text("~ beyond the numbers of nodes that were measured", "dim"))
    if result.agree < result.steps:
        lines.append(
            Text(
                f"{result.steps - result.agree} of {result.steps} steps do not give their own accept length "
                "again (another rule of building or accepting, or near-ties in the draft); run: ddviz doctor",
                "yellow",
            )
        )
    if result.skipped:
        lines.append(Text(f"{result.skipped} steps hold no draft distribution and were left out", "yellow"))
    if result.biased:
        lines.append(
            Text("Thresholds below 1: the text depends on the tree, and so do these answers", "yellow")
        )
    return lines


def _result_dict(result: WhatIf, cost: Cost) -> dict[str, Any]:
    rows = rows_of(result, cost)
    best = best_of(rows)
    return {
        "recorded": result.recorded,
        "temperature": result.temperature,
        "traces": result.traces,
        "steps": result.steps,
        "skipped": result.skipped,
        "agree": result.agree,
        "thresholds_below_1": result.biased,
        "accept_length": round(result.recorded_accept_length, 4),
        "settings": [
            {
                "budget": row.estimate.budget,
                "topk_cap": row.estimate.topk_cap,
                "nodes": round(row.estimate.mean_nodes, 2),
                "accept_length": round(row.estimate.accept_length, 4),
                "at_recorded_starts": round(row.estimate.at_recorded_starts, 4),
                "beyond_k": row.estimate.beyond_k,
                "at_end": row.estimate.at_end,
                "ms_per_step": None if row.ms is None else round(row.ms, 3),
                "tokens_per_s": None if row.tokens_per_s is None else round(row.tokens_per_s, 2),
                "cost_measured": row.measured,
            }
            for row in rows
        ],
        "best": None
        if best is None
        else {"budget": best.estimate.budget, "topk_cap": best.estimate.topk_cap},
    }
