"""What the viewer draws of one step: every node with its numbers, the path, the bonus, the stage times.

In:  Trace and the place of a step in it.
Out: step_view: plain JSON; what the trace lacks is null.
Not here: following a trace (view.py), a tree that can be drawn whatever the trace says (shape.py), why a node
was accepted or not (verdict.py), judging the recorder (check/doctor.py).

Steps may be damaged and still decode, with lists too short and links that lead nowhere: nothing here raises
for that, and `faults` (of the step, and of each node) say what is wrong.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ddviz.trace import Trace
from ddviz.trace.schema import Step, TargetRows
from ddviz.tree import node_statuses, unpack_mask
from ddviz.viewer.exam import bonus_exam, differences, exams
from ddviz.viewer.shape import Shape, at, finite, shape_of
from ddviz.viewer.verdict import Examined, bonus_reason, node_reasons, running_sums

JSON = dict[str, Any]
MOST_FAULTS = 100  # of a step that are told one by one
_MAX_TABLE_MASK = 1100  # a mask wider than the kernels allow is no mask


def step_view(trace: Trace, i: int) -> JSON:
    """Step number `i` of the trace in full. Raises IndexError where there is no such step."""
    if not 0 <= i < len(trace.steps):
        raise IndexError(f"step {i} of {len(trace.steps)}")
    step = trace.steps[i]
    faults: list[str] = []
    node_faults: list[list[str]] = [[] for _ in step.tree.tokens]
    shape = shape_of(step, faults, node_faults)
    faults += _wrong_lengths(step)
    total, stages = stage_times(step)
    judged = running_sums(step, shape.children, trace.header.threshold_acc)
    statuses = node_statuses(len(step.tree.tokens), shape.path, shape.next_token, shape.next_sibling)
    examined = exams(trace, step, shape, statuses, judged)
    return {
        "i": i,
        "index": step.index,
        "prefix_len": step.prefix_len,
        "n": len(step.tree.tokens),
        "algorithm": trace.header.algorithm,
        "level": trace.header.level,
        "sampling": _sampling(trace),
        "kernel": step.accept.kernel,
        "accept_len": step.accept.num_accepted + 1,
        "path": shape.path,
        "nodes": _nodes(trace, step, shape, node_faults, statuses, judged, differences(examined)),
        "bonus": _bonus(trace, step, shape) | {"exam": bonus_exam(trace, step, shape, judged)},
        "exams": examined,
        "draft": _draft(step),
        "build": _build_limits(trace),
        "arrays": _arrays(step),
        "accept": {"index": step.accept.index, "predicts": step.accept.predicts},
        "labels": _labels(trace, step),
        "emitted": [{"id": token, "label": trace.tokens.label(token)} for token in step.emitted],
        "ms": total,
        "stages": stages,
        "times_us": step.times_us,
        "batch": _batch(step),
        "mask": mask_rows(step),
        "commit": _commit(step),
        "nonfinite": step.target.nonfinite if step.target else 0,
        "faults": _first(faults),
    }


def _first(faults: list[str]) -> list[str]:
    more = len(faults) - MOST_FAULTS
    return [*faults[:MOST_FAULTS], f"and {more} more"] if more > 0 else faults


def stage_times(step: Step) -> tuple[float | None, dict[str, float]]:
    """Milliseconds of the whole step and of each stage."""
    stages = {name: us / 1000 for name, us in step.times_us.items() if name not in ("total", "step")}
    whole = step.total_us
    return None if whole is None else finite(whole / 1000), stages


def _wrong_lengths(step: Step) -> list[str]:
    """Lists that do not have one entry per node; arrays of the kernels may be wider."""
    n = len(step.tree.tokens)
    exact: dict[str, Sequence[Any] | None] = {
        "tree.parents": step.tree.parents,
        "tree.ranks": step.tree.ranks,
        "tree.scores": step.tree.scores,
    }
    wide: dict[str, Sequence[Any] | None] = {"positions": step.positions, "slots": step.slots}
    if step.retrieve is not None:
        wide |= {
            f"retrieve.{name}": getattr(step.retrieve, name)
            for name in ("index", "next_token", "next_sibling")
        }
    if step.target is not None:
        raw, filtered = step.target.raw, step.target.filtered
        exact |= {f"target.raw.{name}": getattr(raw, name) for name in TargetRows.__struct_fields__}
        exact["target.filtered.node_probs"] = filtered.node_probs if filtered else None
    if step.sampling is not None:
        wide["sampling.coins"] = step.sampling.coins
    wrong = [(name, values) for name, values in exact.items() if values is not None and len(values) != n]
    wrong += [(name, values) for name, values in wide.items() if values is not None and len(values) < n]
    sentences = [f"{name} holds {len(values)} entries for {n} nodes" for name, values in wrong]
    return sentences if n else [*sentences, "the tree has no nodes"]


def _nodes(
    trace: Trace,
    step: Step,
    shape: Shape,
    node_faults: list[list[str]],
    statuses: list[str],
    judged: dict[int, Examined],
    differs: dict[int, str],
) -> list[JSON]:
    reasons = node_reasons(step, shape.children, shape.parents, shape.path, statuses, judged, trace)
    return [
        _node(trace, step, shape, node)
        | {"status": statuses[node], "why": reasons[node], "differs": differs.get(node)}
        | {"faults": node_faults[node]}
        | _judged(judged.get(node))
        for node in range(len(step.tree.tokens))
    ]


def _sampling(trace: Trace) -> JSON:
    header, params = trace.header, trace.header.sampling
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "threshold_single": header.threshold_single,
        "threshold_acc": header.threshold_acc,
    }


def _draft(step: Step) -> JSON | None:
    """The drafter's candidates as recorded; their texts are in `labels`."""
    if step.draft is None:
        return None
    rows = step.draft.top_logprobs
    logprobs = None if rows is None else [[finite(value) for value in row] for row in rows]
    return {"ids": step.draft.top_ids, "logprobs": logprobs}


def _build_limits(trace: Trace) -> JSON | None:
    """What the best-first search was allowed; None for a tree that it did not build."""
    header = trace.header
    if header.algorithm != "DDTREE" or header.budget is None:
        return None
    return {"budget": header.budget, "topk_cap": header.topk_cap or 0}


def _arrays(step: Step) -> JSON:
    """The kernels' arrays as recorded, T wide, pad nodes too."""
    retrieve = step.retrieve
    return {
        "index": retrieve.index if retrieve else None,
        "next_token": retrieve.next_token if retrieve else None,
        "next_sibling": retrieve.next_sibling if retrieve else None,
        "positions": step.positions,
        "slots": step.slots,
    }


def _labels(trace: Trace, step: Step) -> dict[str, str]:
    """Texts of the tokens that stand in the step by id alone: draft candidates, raw top tokens, predicts."""
    ids = set(step.accept.predicts)
    if step.draft is not None:
        ids.update(token for row in step.draft.top_ids for token in row)
    if step.target is not None:
        ids.update(token for row in step.target.raw.top_ids for token in row)
    return {str(token): trace.tokens.label(token) for token in sorted(ids)}


def _node(trace: Trace, step: Step, shape: Shape, node: int) -> JSON:
    token = step.tree.tokens[node]
    retrieve, target, depth = step.retrieve, step.target, shape.depths[node]
    rank = at(step.tree.ranks, node)
    raw = target.raw if target else None
    filtered = target.filtered if target else None
    return {
        "i": node,
        "id": token,
        "label": trace.tokens.label(token),
        "bytes": trace.tokens[token].hex(" ") if token in trace.tokens else None,
        "parent": shape.parents[node],
        "children": shape.children[node],
        "depth": depth,
        "rank": rank,
        "score": finite(at(step.tree.scores, node)),
        "draft_prob": _draft_prob(step, trace, shape, node, depth, rank),
        "target_prob": finite(at(filtered.node_probs if filtered else raw.node_probs if raw else None, node)),
        "raw_prob": finite(at(raw.node_probs, node)) if raw else None,
        "coin": finite(at(step.sampling.coins, node)) if step.sampling else None,
        "flat": at(retrieve.index, node) if retrieve else None,
        "next_token": at(retrieve.next_token, node) if retrieve else None,
        "next_sibling": at(retrieve.next_sibling, node) if retrieve else None,
        "position": at(step.positions, node),
        "slot": at(step.slots, node),
        "top": _top(trace, step, node),
        "top_kind": "filtered" if filtered and filtered.top_ids else "raw" if raw else None,
        "raw_top": _raw_top(step, node),
        "entropy": finite(at(raw.entropy, node)) if raw else None,
        "margin": finite(at(raw.margin, node)) if raw else None,
        "argmax": _token(trace, at(raw.argmax, node)) if raw else None,
    }


def _token(trace: Trace, token: int | None) -> JSON | None:
    return None if token is None else {"id": token, "label": trace.tokens.label(token)}


def _draft_prob(
    step: Step, trace: Trace, shape: Shape, node: int, depth: int, rank: int | None
) -> float | None:
    """Probability the drafter gave the node's token: from its candidate lists, else from the scores."""
    if node == 0:
        return None
    draft = step.draft
    if (
        draft is not None
        and rank is not None
        and at(at(draft.top_ids, depth - 1), rank) == step.tree.tokens[node]
    ):
        return _exp(at(at(draft.top_logprobs, depth - 1), rank))
    scores = step.tree.scores
    own, above = at(scores, node), at(scores, shape.parents[node])
    if trace.header.score_kind == "logprob" and own is not None and above is not None:
        return _exp(own - above)
    return None


def _exp(logprob: float | None) -> float | None:
    """exp of a log-probability; None where it is none (damage must not overflow)."""
    return None if logprob is None or not -1e4 < logprob < 1 else math.exp(logprob)


def _top(trace: Trace, step: Step, node: int) -> list[JSON]:
    """The target's likeliest tokens after a node, as acceptance used them where that was recorded."""
    if step.target is None:
        return []
    filtered, rows = step.target.filtered, step.target.raw
    source = filtered if filtered and filtered.top_ids and filtered.top_probs else rows
    ids, probs = at(source.top_ids, node) or [], at(source.top_probs, node)
    return [
        {"id": token, "label": trace.tokens.label(token), "prob": finite(at(probs, j))}
        for j, token in enumerate(ids)
    ]


def _raw_top(step: Step, node: int) -> list[list[int | float | None]] | None:
    """Id and probability of the target's tokens before filters; None where `top` is just that."""
    filtered = step.target.filtered if step.target else None
    if step.target is None or filtered is None or not filtered.top_ids or not filtered.top_probs:
        return None
    raw = step.target.raw
    ids, probs = at(raw.top_ids, node) or [], at(raw.top_probs, node)
    return [[token, finite(at(probs, j))] for j, token in enumerate(ids)]


def _judged(examined: Examined | None) -> JSON:
    if examined is None:
        return {"judged_by": None, "running": None, "threshold": None}
    running, threshold = finite(examined.running), finite(examined.threshold)
    return {"judged_by": finite(examined.coin), "running": running, "threshold": threshold}


def _bonus(trace: Trace, step: Step, shape: Shape) -> JSON:
    """The token the target added at the end of the accepted path."""
    token, sampling = step.accept.bonus, step.sampling
    last = shape.path[-1] if shape.path else 0
    prob = next((t["prob"] for t in _top(trace, step, last) if t["id"] == token), None)
    if prob is None and sampling is not None:
        prob = finite(sampling.bonus_prob)
    return {
        "id": token,
        "label": trace.tokens.label(token),
        "bytes": trace.tokens[token].hex(" ") if token in trace.tokens else None,
        "parent": last,
        "depth": (shape.depths[last] if last < len(shape.depths) else 0) + 1,
        "prob": prob,
        "final_coin": finite(sampling.final_coin) if sampling else None,
        "residual_sum": finite(sampling.residual_sum) if sampling else None,
        "cdf": finite(sampling.bonus_cdf) if sampling else None,
        "emitted": len(step.emitted) > step.accept.num_accepted,
        "why": bonus_reason(step, shape.children, last),
    }


def _batch(step: Step) -> JSON | None:
    batch = step.batch
    if batch is None:
        return None
    return {"id": batch.id, "size": batch.size, "row": batch.row, "q_len": batch.q_len, "mode": batch.mode}


def _commit(step: Step) -> JSON | None:
    commit = step.commit
    if commit is None:
        return None
    return {name: getattr(commit, name) for name in commit.__struct_fields__}


def mask_rows(step: Step) -> list[str] | None:
    """The attention mask, one string of 0 and 1 per query node; None where it is absent or misshapen."""
    width = step.batch.q_len if step.batch else len(step.tree.tokens)
    if step.mask is None or not 0 < width <= _MAX_TABLE_MASK:
        return None
    try:
        mask = unpack_mask(step.mask, width)
    except ValueError:
        return None
    digits = (mask.astype(np.uint8) + ord("0")).tobytes().decode("ascii")
    return [digits[first : first + width] for first in range(0, len(digits), width)]
