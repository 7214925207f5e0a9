"""The traces that a command was given: one file, or every *.ddviz below a folder.

In:  a path.
Out: Gathered: traces that have steps, and a sentence on each file that could not be used.
Not here: what is counted over them (stats.py, whatif.py).
"""

from pathlib import Path
from typing import NamedTuple

from ddviz.errors import TraceError
from ddviz.trace import Trace, load
from ddviz.trace.schema import Header


class Gathered(NamedTuple):
    traces: list[Trace]
    notes: list[str]  # files that were left out or are damaged, and why


def gather(path: str | Path) -> Gathered:
    """Read what is there.

    Raises TraceError where the path names no trace, or a folder without one that has steps. In a folder a
    file that can't be read is a note.
    """
    path = Path(path)
    if not path.is_dir():
        found = _kept([load(path)], [])
    else:
        found = _kept(*_read(sorted(file for file in path.rglob("*.ddviz") if file.is_file())))
    if not found.traces:
        why = "; ".join(found.notes) or "no .ddviz file in it or below; record one with: ddviz record"
        raise TraceError(f"{path}: {why}")
    return found


def setting_of(header: Header) -> str:
    """A run's tree in a word: 16-4 (budget-cap, cap 0 = none), else the algorithm's name."""
    if header.algorithm == "DDTREE" and header.budget is not None:
        return f"{header.budget}-{header.topk_cap or 0}"
    return "linear" if header.algorithm == "DFLASH" else header.algorithm


def _read(files: list[Path]) -> tuple[list[Trace], list[str]]:
    traces, notes = [], []
    for file in files:
        try:
            traces.append(load(file))
        except TraceError as error:
            notes.append(str(error))
    return traces, notes


def _kept(traces: list[Trace], notes: list[str]) -> Gathered:
    """Those with steps."""
    notes = notes + [f"{trace.path}: {trace.damage}" for trace in traces if trace.damage]
    notes += [f"{trace.path}: has no steps" for trace in traces if not len(trace.steps)]
    return Gathered([trace for trace in traces if len(trace.steps)], notes)
