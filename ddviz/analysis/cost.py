"""What a step costs as a function of the nodes it verifies, for `ddviz whatif`.

In:  traces with stage times, or values that somebody measured.
Out: Cost: milliseconds of a whole step, draft to commit.

Measured: per number of nodes the median over its steps; between two numbers a straight line; more nodes never
cost less. Beyond them, to half the smallest and twice the largest, the line through the last two, where the
measured numbers span a factor of two. One node is autoregression, which drafts nothing: it stands apart, and
no line goes through it. What the context's length adds is in the medians, not in the model.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddviz.analysis.traces import gather
from ddviz.errors import BadValueError
from ddviz.trace import Trace

LEAST_STEPS = 3  # that a median takes
NEAR = 0.1  # of a number of nodes: as good as measured
FACTOR = 2.0  # how far beyond the measured a line may go, and how far apart they must lie


@dataclass(frozen=True, slots=True)
class Cost:
    """knots: nodes -> ms of a step, by rising nodes."""

    knots: dict[int, float]
    source: str

    def ms(self, nodes: float) -> float | None:
        """Of a step that verifies so many nodes; None where that can't be said."""
        if nodes <= 1:
            return self.knots.get(1)
        xs = [n for n in self.knots if n > 1]
        nearest = min(xs, key=lambda n: abs(n - nodes), default=0)
        inside = self.covers(nodes)
        if not inside and abs(nearest - nodes) <= NEAR * nodes:
            return self.knots[nearest]
        spans = len(xs) > 1 and xs[-1] >= FACTOR * xs[0]
        if not inside and not (spans and xs[0] / FACTOR <= nodes <= xs[-1] * FACTOR):
            return None
        if len(xs) == 1:  # and inside: it is that one
            return self.knots[xs[0]]
        right = min(max(int(np.searchsorted(xs, nodes)), 1), len(xs) - 1)
        (x0, y0), (x1, y1) = ((x, self.knots[x]) for x in xs[right - 1 : right + 1])
        return max(y0 + (y1 - y0) * (nodes - x0) / (x1 - x0), 0.0)

    def covers(self, nodes: float) -> bool:
        """Whether it lies between measured numbers."""
        xs = [n for n in self.knots if n > 1]
        return bool(xs) and xs[0] <= nodes <= xs[-1]


def measured(traces: Iterable[Trace], source: str) -> Cost:
    """From the stage times of traces; without any, a Cost that knows nothing."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for trace in traces:
        for step in trace.steps:
            if step.total_us is not None:
                nodes = step.batch.q_len if step.batch else len(step.tree.tokens)
                times[nodes].append(step.total_us / 1000)
    medians = {n: float(np.median(ms)) for n, ms in times.items() if len(ms) >= LEAST_STEPS}
    return Cost(_rising(medians), source)


def parse_cost(text: str) -> Cost:
    """`--cost`: a trace or folder of traces to measure, a JSON file {"17": ms}, or values 17:190,65:400.

    Raises BadValueError, and TraceError for a folder without traces.
    """
    path = Path(text)
    if path.is_dir() or path.suffix == ".ddviz":
        return measured(gather(path).traces, f"medians of the steps in {path}")
    if path.is_file():
        return Cost(_rising(_checked(_pairs_of_file(path), text)), str(path))
    pairs = [pair.partition(":") for pair in text.split(",")]
    return Cost(_rising(_checked([(nodes, ms) for nodes, _, ms in pairs], text)), "the values given")


def _pairs_of_file(path: Path) -> list[tuple[str, str]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadValueError(f'{path}: not JSON of the form {{"17": 190.0}}, nodes to ms ({error})') from None
    if not isinstance(values, dict):
        raise BadValueError(f'{path}: must be an object of the form {{"17": 190.0}}, nodes to ms')
    return [(str(nodes), str(ms)) for nodes, ms in values.items()]


def _checked(pairs: list[tuple[str, str]], text: str) -> dict[int, float]:
    try:
        knots = {int(nodes): float(ms) for nodes, ms in pairs}
        if not knots or not all(n >= 1 and 0 < ms < float("inf") for n, ms in knots.items()):
            raise ValueError
    except ValueError:
        raise BadValueError(
            f"--cost {text}: must be a trace, a folder of traces, a JSON file, or values such as "
            "1:100,17:190,65:400 (nodes with the root: ms of a step)"
        ) from None
    return knots


def _rising(knots: dict[int, float]) -> dict[int, float]:
    """Sorted; among trees, never less for more nodes."""
    most, rising = 0.0, {}
    for nodes, ms in sorted(knots.items()):
        if nodes > 1:
            most = ms = max(most, ms)
        rising[nodes] = ms
    return rising
