"""How much of each step an exported page holds.

In:  Trace, the place of a step in it.
Out: a step view: whole (standard), or without what takes the most room (light).
Not here: step views themselves (step.py), writing pages (html.py).

    standard   everything the viewer can show
    light      tree, accepted path, draft_prob and target_prob of each node, times: an eighth of the size
"""

from dataclasses import replace
from typing import Any, Literal

import msgspec

from ddviz.trace import StepSequence, Trace
from ddviz.trace.schema import Step
from ddviz.viewer.step import step_view

Level = Literal["light", "standard"]
LEVELS: dict[str, str] = {
    "light": "tree, path and node probabilities",
    "standard": "every array of every step",
}
LIGHT_NOTE = (
    "This page holds tree, path and node probabilities of each step. A page with every array: "
    "ddviz export --level standard"
)
_DIGITS = 4  # of a probability in a light page
_LEFT_OUT = ("draft", "retrieve", "positions", "slots", "mask", "target", "sampling", "commit")


def step_at(trace: Trace, i: int, level: Level) -> dict[str, Any]:
    """The view of step `i` at a level."""
    return step_view(trace, i) if level == "standard" else _light_view(trace, i)


def _light_view(trace: Trace, i: int) -> dict[str, Any]:
    step = trace.steps[i]
    header = msgspec.structs.replace(trace.header, level="light")
    view = step_view(replace(trace, header=header, steps=_OneStep(i, _light_step(step))), i)
    target = step.target
    rows = None if target is None else target.filtered or target.raw
    probs = (rows.node_probs if rows else None) or []
    for node in view["nodes"]:
        prob = probs[node["i"]] if node["i"] < len(probs) else None
        node |= {"target_prob": _cut(prob), "draft_prob": _cut(node["draft_prob"])}
        node |= {"score": None, "bytes": None}
    return view


def _light_step(step: Step) -> Step:
    """A step as if no more than its tree and path had been recorded."""
    return msgspec.structs.replace(step, **dict.fromkeys(_LEFT_OUT))


def _cut(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


class _OneStep(StepSequence):
    """A sequence of which one step is looked at."""

    def __init__(self, i: int, step: Step) -> None:
        super().__init__()
        self._i, self._step = i, step

    def __len__(self) -> int:
        return self._i + 1

    def __getitem__(self, index: Any) -> Any:
        return self._step
