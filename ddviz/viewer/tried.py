"""What the charts count of a step: every node that acceptance examined, and how sure the target was there.

In:  Step as recorded, perhaps damaged.
Out: tried, path_entropy: a few numbers, small enough for every step of a trace.
Not here: adding them up and drawing them (viewer/charts*.js).

    root ─ a ─ b          path root, a, b: c and a were tried at depth 1, b at depth 2, e at depth 3
         └ c     └ e      tried [[1, 0, 0.6, 0], [1, 1, 0.2, 1], [2, 0, 0.9, 1], [3, 0, 0.4, 0]]
"""

import math
from typing import Literal

from ddviz.trace.schema import Step
from ddviz.viewer.marks import accepted_path, examined
from ddviz.viewer.shape import at

_DIGITS = 3
Number = int | float | None
ScoreKind = Literal["logprob", "prob", "none"]


def tried(step: Step, score_kind: ScoreKind) -> list[list[Number]]:
    """[depth, rank, draft_prob, taken 1 or 0] of every node examined, in that order."""
    path = accepted_path(step)
    depths = {node: depth for depth, node in enumerate(path)}
    return [
        [
            depths[parent] + 1,
            at(step.tree.ranks, child),
            _cut(_draft_prob(step, score_kind, child, parent, depths[parent])),
            int(child in path),
        ]
        for child, parent in examined(step, path)
    ]


def path_entropy(step: Step) -> list[float | None] | None:
    """Nats of the target's raw distribution at every node of the accepted path; None: not recorded."""
    if step.target is None:
        return None
    return [_cut(at(step.target.raw.entropy, node)) for node in accepted_path(step)]


def _draft_prob(step: Step, score_kind: ScoreKind, child: int, parent: int, row: int) -> float | None:
    """From the drafter's candidates at this depth, else from the scores of both."""
    rank, draft = at(step.tree.ranks, child), step.draft
    if draft and rank is not None and at(at(draft.top_ids, row), rank) == step.tree.tokens[child]:
        return _exp(at(at(draft.top_logprobs, row), rank))
    own, above = at(step.tree.scores, child), at(step.tree.scores, parent)
    return _exp(own - above) if score_kind == "logprob" and own is not None and above is not None else None


def _exp(logprob: float | None) -> float | None:
    return None if logprob is None or not -1e4 < logprob < 1 else math.exp(logprob)


def _cut(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
