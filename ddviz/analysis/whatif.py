"""`ddviz whatif`: what accept length another budget and topk_cap would have had, from one recorded run.

In:  traces whose steps hold draft distributions; budgets and caps.
Out: WhatIf per recorded setting and temperature: an Estimate for each budget and cap.
Not here: what a step costs (cost.py), layout (whatif_report.py), running a model.

The argument. The draft distribution of a step depends on the text before it alone, not on budget or cap: the
tree that another setting would have grown there is grown again by tree/build.py. Which of its nodes would be
accepted follows from the text. A step emits the tokens of its accepted nodes and the bonus; at thresholds 1.0
a child is accepted exactly if its token is the one emitted; and the output does not depend on the tree: it is
the target's own (greedy) or has the target's distribution (sampled). So the accept length is 1 + the length
of the longest path from the root that agrees with the recorded continuation.

It is **exact per step for the recorded continuation**. It is not exact for a whole run: steps begin where the
recorded setting ended the step before, and another setting would have begun them elsewhere. What that bias is
worth was measured: docs/whatif.md.

Where exactness ends, and is counted: a cap above the recorded K (candidates kept per position), or none,
where the tree uses the last kept candidate (`beyond_k`); a step whose walk meets the end of the recorded text
(`at_end`, a lower bound). Steps without a draft, or with no tree to grow, are left out (`skipped`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddviz.analysis.diff import side_of
from ddviz.analysis.traces import setting_of
from ddviz.errors import BadValueError
from ddviz.trace import Trace
from ddviz.trace.schema import Header, Step
from ddviz.tree import DraftTree, build_tree

MAX_BUDGET = 1024  # the tree kernels' limit
BUDGETS = (8, 16, 32, 64, 128)  # what is asked where nothing is said
CAPS = (2, 4, 8, 16)


class Answer(NamedTuple):
    """One step under one budget and cap."""

    accept_length: int
    nodes: int  # verified, the root among them
    beyond_k: bool  # the tree may differ: it would have used candidates that were not kept
    at_end: bool  # a lower bound: the recorded text ends here


class Text(NamedTuple):
    """Sums over one trace: steps, and accept lengths of the recorded and of another setting."""

    steps: int
    recorded: int
    other: int


@dataclass(slots=True)
class Estimate:
    """One budget and cap over all steps of one recorded setting."""

    budget: int
    topk_cap: int
    texts: list[Text] = field(default_factory=list)  # per trace
    nodes: int = 0
    beyond_k: int = 0
    at_end: int = 0

    @property
    def steps(self) -> int:
        return sum(text.steps for text in self.texts)

    @property
    def at_recorded_starts(self) -> float:
        """Mean over the recorded steps."""
        return sum(text.other for text in self.texts) / max(1, self.steps)

    @property
    def accept_length(self) -> float:
        """As a run of its own would have it, as far as that can be said: every text as often as its own
        steps would be, recorded tokens / its mean accept length, instead of as often as they were.
        """
        steps = sum(text.recorded * text.steps / text.other for text in self.texts)
        return sum(text.recorded for text in self.texts) / steps if steps else 0.0

    @property
    def mean_nodes(self) -> float:
        return self.nodes / max(1, self.steps)


@dataclass(slots=True)
class WhatIf:
    """One recorded setting and temperature."""

    recorded: str
    temperature: float
    traces: int = 0
    steps: int = 0  # that were asked
    skipped: int = 0
    recorded_accept_length: float = 0.0  # of the steps that were asked
    agree: int = 0  # steps whose recorded accept length comes out again under the recorded budget and cap
    linear: tuple[int, int] | None = None  # budget and cap that are linear DFlash
    biased: bool = False  # thresholds below 1: the text depends on the tree
    padded_to: int = 0  # nodes that every step of this engine verifies at least
    estimates: list[Estimate] = field(default_factory=list)


def whatif(
    traces: Sequence[Trace],
    budgets: Sequence[int] | None = None,
    caps: Sequence[int] | None = None,
) -> list[WhatIf]:
    """Ask every step of every trace; a WhatIf per recorded setting and temperature.

    budgets, caps  every one with every other, cap 0 = none; None = a grid, with linear DFlash before it
    Raises BadValueError for values that make no sense, and where no trace holds a draft distribution.
    """
    settings = [(budget, cap) for cap in caps or CAPS for budget in budgets or BUDGETS]
    if budgets is None and caps is None:
        chains = {chain(trace.header) for trace in traces} - {None}
        settings = sorted(chains) + settings
    for budget, cap in settings:
        if not (1 <= budget <= MAX_BUDGET and cap >= 0):
            raise BadValueError(
                f"budget {budget}, cap {cap}: a budget is 1 to {MAX_BUDGET}, a cap >= 0 (0 = none)"
            )
    found: dict[tuple[str, float], WhatIf] = {}
    for trace in traces:
        key = setting_of(trace.header), trace.header.sampling.temperature
        if key not in found:
            estimates = [Estimate(*setting) for setting in settings]
            found[key] = WhatIf(*key, linear=chain(trace.header), estimates=estimates)
        _ask_trace(found[key], trace)
    answered = [result for result in found.values() if result.steps]
    if not answered:
        raise BadValueError(
            "no step holds a draft distribution with log-probabilities; what-if needs traces of DDTree or "
            "DFlash at level standard: ddviz record --mode ddtree"
        )
    for result in answered:
        result.recorded_accept_length /= result.steps
    return sorted(answered, key=lambda result: (result.temperature, result.recorded))


def chain(header: Header) -> tuple[int, int] | None:
    """Linear DFlash as budget and cap: one child a node, down to depth B-1."""
    return None if header.block_size is None else (header.block_size - 1, 1)


def _ask_trace(result: WhatIf, trace: Trace) -> None:
    header = trace.header
    result.traces += 1
    result.biased |= min(header.threshold_single, header.threshold_acc) < 1
    if header.engine.name == "sglang" and header.block_size:
        result.padded_to = header.block_size
    own = _own_setting(header)
    sums = [[0, 0, 0] for _ in result.estimates]
    for step, text in continuations(trace):
        rows = _rows(step)
        if rows is None or not text:
            result.skipped += 1
            continue
        recorded = step.accept.num_accepted + 1
        result.steps += 1
        result.recorded_accept_length += recorded
        asked = [(estimate.budget, estimate.topk_cap) for estimate in result.estimates]
        answers = ask(*rows, step.tree.tokens[0], text, [*asked, own] if own else asked, header.vocab_size)
        result.agree += own is not None and answers[-1].accept_length == recorded
        for estimate, of_trace, answer in zip(result.estimates, sums, answers, strict=False):
            for place, value in enumerate((1, recorded, answer.accept_length)):
                of_trace[place] += value
            estimate.nodes += max(answer.nodes, result.padded_to)
            estimate.beyond_k += answer.beyond_k
            estimate.at_end += answer.at_end
    for estimate, of_trace in zip(result.estimates, sums, strict=True):
        if of_trace[0]:
            estimate.texts.append(Text(*of_trace))


def ask(
    logprobs: NDArray[np.float32],
    tokens: NDArray[np.int64],
    root: int,
    text: Sequence[int],
    settings: Sequence[tuple[int, int]],
    vocab_size: int | None = None,
) -> list[Answer]:
    """One step under every setting.

    logprobs, tokens  [B-1, K] the recorded draft distribution, falling
    text              tokens that followed the root
    settings          (budget, cap)

    A best-first tree of a smaller budget is the beginning of that of a larger one, so one tree a cap will do.
    """
    most: dict[int, int] = {}
    for budget, cap in settings:
        most[cap] = max(budget, most.get(cap, 0))
    trees = {cap: build_tree(logprobs, tokens, root, budget, cap) for cap, budget in most.items()}
    k = tokens.shape[1]
    all_kept = vocab_size is not None and vocab_size <= k
    answers = []
    for budget, cap in settings:
        tree = trees[cap]
        path, at_end = _path(tree, text, budget)
        cut_off = not all_kept and (cap == 0 or cap > k) and bool((tree.ranks[1 : budget + 1] == k - 1).any())
        answers.append(Answer(len(path) + 1, min(budget + 1, len(tree)), cut_off, at_end))
    return answers


def continuations(trace: Trace) -> Iterator[tuple[Step, list[int]]]:
    """Each step, and the tokens that followed its root as far as the trace knows them.

    Where steps are missing, the text of those before ends. The last step before an end also knows the tokens
    it predicted beyond the cut.
    """
    side = side_of(trace)
    steps = list(trace.steps)
    end, tail = len(side.tokens), []
    ends: list[tuple[int, list[int]]] = []
    for place in reversed(range(len(steps))):
        is_last = place + 1 == len(steps) or steps[place + 1].index != steps[place].index + 1
        if is_last:
            end = side.starts[place] + len(steps[place].emitted)
            tail = steps[place].accept.predicts[len(steps[place].emitted) :]
        ends.append((end, tail))
    for step, start, (end, tail) in zip(steps, side.starts, reversed(ends), strict=True):
        yield step, side.tokens[start:end] + tail


def _path(tree: DraftTree, text: Sequence[int], budget: int) -> tuple[list[int], bool]:
    """Nodes below the root, of the first `budget`, that agree with the text; whether the text ended there."""
    children: dict[tuple[int, int], int] = {}
    inner = set()
    for node in range(1, min(budget + 1, len(tree))):
        parent = int(tree.parents[node])
        children[parent, int(tree.tokens[node])] = node
        inner.add(parent)
    path, node = [], 0
    for token in text:
        child = children.get((node, token))
        if child is None:
            return path, False
        path.append(child)
        node = child
    return path, node in inner


def _rows(step: Step) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
    """The draft distribution [B-1, K]; None where a tree can't be built from it."""
    draft = step.draft
    if draft is None or not draft.top_logprobs or not draft.top_ids:
        return None
    k = min(map(len, [*draft.top_ids, *draft.top_logprobs]))
    if not k or len(draft.top_ids) != len(draft.top_logprobs):
        return None
    logprobs = np.array([row[:k] for row in draft.top_logprobs], np.float32)  # null becomes NaN
    if not (logprobs < np.inf).all():
        return None
    return logprobs, np.array([row[:k] for row in draft.top_ids], np.int64)


def _own_setting(header: Header) -> tuple[int, int] | None:
    if header.algorithm == "DFLASH":
        return chain(header)
    return None if header.budget is None else (header.budget, header.topk_cap or 0)
