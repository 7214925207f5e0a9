"""What a recorded run would have accepted at other temperatures, from the target's recorded probabilities.

In:  steps whose target recorded raw probabilities (softmax at temperature 1).
Out: mean accept length at each temperature, over the recorded steps and trees, as two bounds.
Not here: other trees (analysis/whatif.py); other texts, of which nothing is known.

Once its parent is accepted a child is accepted with its own target probability, whatever its siblings are
(tree/accept.py). So a node is with the product along its path, and a step's expected accept length is one,
for the bonus, plus the sum of these products. Greedy accepts a child that is the argmax, and no other.

At temperature T a probability is p^(1/T) over the sum of all p^(1/T). Recorded are the likeliest m tokens and
the tree's; of the others the whole mass is known, and that none is likelier than the m-th. For T <= 1 they
add between nothing and mass * least^(1/T - 1) to that sum.
"""

from typing import NamedTuple

import numpy as np

from ddviz.trace import Trace
from ddviz.trace.schema import Step

TEMPERATURES = tuple(round(0.1 * k, 1) for k in range(11))


class Bounds(NamedTuple):
    """Between which two values a mean accept length lies."""

    low: float
    high: float


def lengths_at(trace: Trace, temperatures: tuple[float, ...] = TEMPERATURES) -> list[Bounds] | None:
    """Mean accept length at each temperature, 0 to 1; None where a step lacks the target's raw probabilities.

    Raises ValueError for a temperature outside 0 to 1.
    """
    steps = list(trace.steps)
    if not steps or not all(_holds_target(step) for step in steps):
        return None
    means = []
    for temperature in temperatures:
        found = [expected_length(step, temperature) for step in steps]
        means.append(Bounds(*(float(np.mean(side)) for side in zip(*found, strict=True))))
    return means


def expected_length(step: Step, temperature: float) -> Bounds:
    """Expected accept length of a step at a temperature from 0 to 1; at 0 the two bounds are one."""
    if not 0 <= temperature <= 1:
        raise ValueError(f"{temperature = }, must be from 0 to 1")
    low, high = [1.0], [1.0]  # of each node, that it is accepted
    for node, parent in enumerate(step.tree.parents[1:], start=1):
        bounds = _probability(step, node, parent, temperature)
        low.append(low[parent] * bounds.low)
        high.append(high[parent] * bounds.high)
    return Bounds(sum(low), sum(high))  # the root's one stands for the bonus


def _holds_target(step: Step) -> bool:
    raw = step.target.raw if step.target else None
    return bool(raw and raw.top_ids and raw.top_probs and raw.node_probs and raw.argmax)


def _probability(step: Step, node: int, parent: int, temperature: float) -> Bounds:
    """Of a node's token after its parent's path."""
    assert step.target is not None and step.target.raw is not None
    raw = step.target.raw
    assert raw.top_ids and raw.top_probs and raw.node_probs and raw.argmax
    token = step.tree.tokens[node]
    if temperature == 0:
        is_argmax = float(raw.argmax[parent] == token)
        return Bounds(is_argmax, is_argmax)
    known = {of: p or 0.0 for of, p in zip(raw.top_ids[parent], raw.top_probs[parent], strict=True)}
    least = min(known.values())
    for child, of in enumerate(step.tree.parents):
        if of == parent:
            known[step.tree.tokens[child]] = raw.node_probs[child] or 0.0
    power = 1 / temperature
    whole = sum(p**power for p in known.values())
    rest = max(0.0, 1 - sum(known.values())) * least ** (power - 1)
    own = known[token] ** power
    return Bounds(own / (whole + rest), own / whole if temperature < 1 else own / (whole + rest))
