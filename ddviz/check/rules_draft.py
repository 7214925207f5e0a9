"""Rules of stages 1 and 2, draft and build: is the tree the one that the recorded draft asks for?

In:  StepView.
Out: Fault.
Not here: whether it is a tree at all (rules_structure.py).

Draft log-probabilities are recorded with 5 significant digits, so whatever is computed from them is known up
to half a unit of the fifth digit of each (`rounding`), and a comparison speaks only beyond that.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import exp, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddviz.check.rules import DDTREE, DRAFTED, POSITION_DRAFTED, Fault, step_rule
from ddviz.check.views import FLOAT32_ULP, StepView, Table, rounding

LOGPROB_ABOVE_ZERO = 1e-5  # float32 rounding of a log-softmax
MASS_TOLERANCE = 1e-3  # sum of up to 1,024 probabilities whose logarithms were cut to 5 digits


@step_rule(
    cause="NaN in the drafter, a normalisation over part of the vocabulary, or candidates left unsorted",
    look_at="draft.top_logprobs, draft.top_ids; the drafter's head and its logsumexp",
    algorithms=DRAFTED,
)
def draft_rows(view: StepView) -> Iterator[Fault]:
    """A position's candidates are distinct, their log-probabilities finite, falling, of mass at most 1."""
    draft = view.step.draft
    if draft is None:
        return
    for depth, ids in enumerate(draft.top_ids, start=1):
        if len(set(ids)) != len(ids):
            yield Fault(f"the candidates of depth {depth} hold a token twice")
    table = view.draft_table
    for row in np.flatnonzero(_wrong_rows(table)).tolist() if table is not None else ():
        message = _row_fault((draft.top_logprobs or [])[row])
        if message:
            yield Fault(f"the log-probabilities of depth {row + 1} {message}")


@step_rule(
    cause="the tree was built from another step's draft, or rows are shifted by one position",
    look_at="tree.tokens, tree.ranks, draft.top_ids",
    algorithms=POSITION_DRAFTED,
)
def draft_tokens(view: StepView) -> Iterator[Fault]:
    """A node's token is the candidate of its rank at its depth."""
    draft, tree, depths = view.step.draft, view.step.tree, view.depths
    if draft is None or tree.ranks is None or depths is None:
        return
    for node in range(1, view.n):
        depth, rank, token = depths[node], tree.ranks[node], tree.tokens[node]
        if depth > len(draft.top_ids):
            continue  # rule depth-limit
        row = draft.top_ids[depth - 1]
        if not 0 <= rank < len(row):
            yield Fault(f"rank {rank}, but depth {depth} has {len(row)} recorded candidates", node)
        elif row[rank] != token:
            yield Fault(
                f"token {token}, but the candidate of depth {depth}, rank {rank} is {row[rank]}", node
            )


@step_rule(
    cause="scores were summed along another path or in another order, or are probabilities, not logarithms",
    look_at="tree.scores, draft.top_logprobs",
    algorithms=POSITION_DRAFTED,
)
def scores(view: StepView) -> Iterator[Fault]:
    """A node's score is its parent's score plus its own draft log-probability; the root's is 0.

    Tolerance: half a unit of the log-probability's fifth digit, and float32 rounding of the sum.
    """
    tree = view.step.tree
    if tree.scores is None or view.header.score_kind != "logprob":
        return
    if tree.scores[0] != 0:
        yield Fault(f"the root's score is {tree.scores[0]}, must be 0", 0)
    logprobs, error = view.draft_logprobs, view.draft_rounding
    if logprobs is None or error is None:
        return
    found, above = np.array(tree.scores, np.float64), np.array(tree.parents)
    expected = found[above] + logprobs
    tolerance = error + 2 * FLOAT32_ULP * np.abs(found)
    for node in np.flatnonzero(np.abs(found - expected) > tolerance).tolist():
        yield Fault(
            f"score {found[node]:.7g}, must be {expected[node]:.7g} "
            f"(node {above[node]}: {found[above[node]]:.7g}, log-probability {logprobs[node]:.5g})",
            node,
        )


@step_rule(
    cause="nodes were taken in another order than by score",
    look_at="tree.scores",
    algorithms=DDTREE,
)
def pop_order(view: StepView) -> Iterator[Fault]:
    """Nodes are numbered as they were popped, so scores never rise from a node to the next."""
    found = view.step.tree.scores or []
    for node, (before, score) in enumerate(pairwise(found), start=1):
        if before is not None and score is not None and score > before:
            yield Fault(f"score {score:.7g} is above that of node {node - 1}, {before:.7g}", node)


@step_rule(
    cause="the builder's limits differ from those that the header names",
    look_at="header.budget, header.topk_cap, tree.ranks",
    algorithms=DDTREE,
)
def budget(view: StepView) -> Iterator[Fault]:
    """The tree holds at most `budget` nodes beside the root, and no rank reaches `topk_cap`."""
    header = view.header
    if header.budget is not None and view.n > header.budget + 1:
        yield Fault(f"{view.n - 1} nodes beside the root, budget is {header.budget}")
    for node, rank in enumerate(view.step.tree.ranks or []):
        if header.topk_cap and rank >= header.topk_cap:
            yield Fault(f"rank {rank}, topk_cap is {header.topk_cap}", node)


@step_rule(
    cause="the builder lost candidates, or stopped early; a tree that is only a root cannot accept anything",
    look_at="tree.scores, tree.ranks, draft.top_logprobs, the heap of the builder",
    algorithms=DDTREE,
)
def best_first(view: StepView) -> Iterator[Fault]:
    """No candidate that was left out scores better than a node that was taken, and the budget is used up.

    Near ties are let pass: scores are known up to the fifth digit of each log-probability.
    """
    header, n = view.header, view.n
    if header.budget is None or n > header.budget + 1:
        return
    taken = _scores_from_draft(view)
    if taken is None:
        return
    scores, errors = taken
    left_out = _left_out(view, scores, errors)
    if left_out is None:
        return
    name = f"rank {left_out.rank} below node {left_out.parent}, of score {left_out.score:.6g},"
    if n <= header.budget:
        yield Fault(f"{n - 1} nodes of a budget of {header.budget}, but {name} was left out", left_out.parent)
    elif n > 1:
        worst = min(range(1, n), key=lambda node: scores[node] + errors[node])
        if left_out.score - left_out.error > scores[worst] + errors[worst]:
            yield Fault(f"{name} was left out, while this node was taken with {scores[worst]:.6g}", worst)


class _Candidate(NamedTuple):
    """What was not taken: its score from rounded log-probabilities, and how far that may be off."""

    score: float
    error: float
    parent: int
    rank: int


def _scores_from_draft(view: StepView) -> tuple[list[float], list[float]] | None:
    """Scores [n] summed from the recorded draft, and how far they may be off; None where one is missing."""
    parents, logprobs, rounded = view.step.tree.parents, view.draft_logprobs, view.draft_rounding
    if logprobs is None or rounded is None or np.isnan(logprobs[1:]).any():
        return None
    scores, errors = [0.0], [0.0]
    for node, (logprob, error) in enumerate(zip(logprobs.tolist(), rounded.tolist(), strict=True)):
        if node:
            score = scores[parents[node]] + logprob
            scores.append(score)
            errors.append(errors[parents[node]] + error + FLOAT32_ULP * abs(score))
    return scores, errors


def _left_out(view: StepView, scores: list[float], errors: list[float]) -> _Candidate | None:
    """The best of what a heap would still hold: below each node, the first rank that is no child of it."""
    header, table = view.header, view.draft_table
    if table is None or view.depths is None:
        return None
    limit = min(header.topk_cap or inf, header.budget or inf, header.vocab_size or inf, table.shape[1])
    rows, ranks = np.array(view.depths), np.array(_free_ranks(view))
    nodes = np.flatnonzero((rows < len(table)) & (ranks < limit))
    logprobs = table[rows[nodes], ranks[nodes]]
    found = np.array(scores)[nodes] + logprobs
    error = np.array(errors)[nodes] + rounding(logprobs) + FLOAT32_ULP * np.abs(found)
    low = np.where(np.isnan(found), -inf, found - error)
    if not len(low) or low.max() == -inf:
        return None
    best = int(low.argmax())
    node = int(nodes[best])
    return _Candidate(float(found[best]), float(error[best]), node, int(ranks[node]))


def _free_ranks(view: StepView) -> list[int]:
    """Per node the first rank that none of its children has."""
    parents, ranks = view.step.tree.parents, view.step.tree.ranks or []
    used: list[set[int]] = [set() for _ in parents]
    for node in range(1, view.n):
        used[parents[node]].add(ranks[node])
    free = []
    for found in used:
        rank = 0
        while rank in found:
            rank += 1
        free.append(rank)
    return free


def _wrong_rows(table: Table) -> NDArray[np.bool_]:
    """Rows [B-1] of the draft that `_row_fault` has something to say about, or nearly."""
    rises = (np.diff(table, axis=1) > 0).any(axis=1)
    heavy = np.exp(table).sum(axis=1) > 1 + MASS_TOLERANCE / 2
    return np.asarray(np.isnan(table).any(axis=1) | rises | heavy | (table > LOGPROB_ABOVE_ZERO).any(axis=1))


def _row_fault(row: list[float | None]) -> str | None:
    for rank, logprob in enumerate(row):
        if logprob is None:
            return f"are not finite at rank {rank}"
        if logprob > LOGPROB_ABOVE_ZERO:
            return f"are above 0 at rank {rank}: {logprob:.5g}"
    values = [logprob for logprob in row if logprob is not None]
    for rank, (before, logprob) in enumerate(pairwise(values), start=1):
        if logprob > before:
            return f"rise at rank {rank}: {before:.5g}, then {logprob:.5g}"
    mass = sum(map(exp, values))
    return f"sum to a probability of {mass:.6g}" if mass > 1 + MASS_TOLERANCE else None
