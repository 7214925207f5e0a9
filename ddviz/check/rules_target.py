"""Rules of stage 4, verify: are the target's rows sound in themselves, and is the right one followed?

In:  StepView.
Out: Fault.
Not here: the replay of the acceptance (rules_accept.py), whether the logits are right (audit.py).

Probabilities of top lists are recorded with 5 significant digits, those of nodes in float32.
"""

from collections.abc import Iterator
from math import log

import numpy as np

from ddviz.check.rules import Fault, step_rule
from ddviz.check.views import StepView, Table, table_of
from ddviz.trace.schema import FilteredRows, TargetRows
from ddviz.tree import is_greedy

MASS_TOLERANCE = 1e-4  # float32 sum of a row of the vocabulary
SAME_PROB = 1e-4  # relative: twice the fifth digit of a displayed probability
LEAST_PROB = 1e-6  # probabilities below it say nothing about a temperature
LEAST_SPREAD = 0.5  # nats between two probabilities that a temperature is read from
SAME_TEMPERATURE = 0.01  # relative: how well the rows of a step must agree on one
OTHER_TEMPERATURE = 0.02  # relative: how far it must be from the request's
LEAST_ROWS = 3  # that must agree
FRACTION_BITS = {"bfloat16": 7, "float16": 10}
TIE_STEPS = 2  # of the number format, between the two best logits


@step_rule(
    cause="rows were reduced before they were written, or those of another node, request or step were read",
    look_at="target.raw and target.filtered: top_ids, top_probs, argmax, margin, node_probs",
)
def target_rows(view: StepView) -> Iterator[Fault]:
    """A row's best tokens have falling probabilities of mass at most 1; the first is the argmax.

    A child's token that is among its parent's best tokens has the probability there, within 1e-4 of it.
    """
    target = view.step.target
    if target is None:
        return
    raw, filtered = target.raw, target.filtered
    yield from _row_faults(view, "raw", raw, view.raw_tops)
    if filtered is not None:
        yield from _row_faults(view, "filtered", filtered, view.filtered_tops)
    for node, (token, row, margin) in enumerate(zip(raw.argmax, raw.top_ids, raw.margin, strict=True)):
        if margin is not None and margin < 0:
            yield Fault(f"target.raw.margin[{node}] = {margin:.6g}, must be >= 0", node)
        elif row[0] != token and margin != 0:  # of two equal logits either may stand first
            yield Fault(f"target.raw.argmax[{node}] = {token}, but the best token is {row[0]}", node)


@step_rule(
    cause="rows were scaled by another request's temperature, or filters were left out",
    look_at="target.filtered against target.raw; header.sampling.temperature, header.sampling.top_k",
)
def filters(view: StepView) -> Iterator[Fault]:
    """The rows that were sampled from are the raw ones at the request's temperature, of at most top_k tokens.

    The temperature is read from how far probabilities of one row lie apart. Where its rows do not agree on
    one, within a hundredth, the rule is silent: penalties, a bias or a grammar changed them.
    """
    target, params = view.step.target, view.header.sampling
    if target is None or target.filtered is None or is_greedy(params.temperature, params.top_k):
        return
    found = _temperature(view)
    if found is not None and abs(found / params.temperature - 1) > OTHER_TEMPERATURE:
        ignored = abs(found - 1) < SAME_TEMPERATURE
        yield Fault(
            f"the filtered rows are the raw ones at temperature {found:.3g}, must be {params.temperature:g}",
            cause="the temperature was ignored" if ignored else None,
        )
    probs, kept = target.filtered.top_probs, params.top_k
    for node, row in enumerate(probs or []):
        last, beyond = row[kept - 1 : kept + 1] if 0 < kept < len(row) else (None, None)
        if last is not None and beyond is not None and 0 < beyond < last:  # equal ones are all kept
            yield Fault(f"the row after node {node} holds more than top_k = {kept} tokens", node)


@step_rule(
    cause="the row is one-hot at another node's argmax, or it was sampled as its neighbours in the batch",
    look_at="target.raw.argmax (target.filtered where it is recorded), accept.predicts, batch.row",
)
def greedy_row(view: StepView) -> Iterator[Fault]:
    """The tokens of a greedy request are the target's argmax, also where the sampling kernel decided.

    In a batch with sampled requests it does so from rows one-hot at the argmax. Equal best logits are let
    pass.
    """
    params, target, path = view.header.sampling, view.step.target, view.path
    if view.step.accept.kernel != "sampled" or not is_greedy(params.temperature, params.top_k):
        return
    if target is None or path is None:
        return
    argmax, margin = target.argmax, target.margin
    for node, token in zip(path, view.step.accept.predicts, strict=True):
        if token != argmax[node] and margin[node] != 0:
            yield Fault(f"{token} was emitted after node {node}, the target's argmax is {argmax[node]}", node)


@step_rule(
    cause="no fault: rounding decides here, and forwards of another shape round otherwise, so the text may "
    "part from that of another run, or of autoregression, at this token",
    look_at="target.raw.margin; ddviz diff; the same run with --dtype float32",
    severity="notice",
)
def near_tie(view: StepView) -> Iterator[Fault]:
    """A greedy token in half precision leads by more than two steps of the number format."""
    target, path, dtype = view.step.target, view.path, str(view.header.engine.options.get("dtype"))
    bits = FRACTION_BITS.get(dtype.removeprefix("torch."))
    if bits is None or target is None or path is None or view.step.accept.kernel != "greedy":
        return
    margin = target.margin
    for node in path:
        logit, lead = _best_logit(target.raw, node), margin[node]
        if logit is None or lead is None or not lead >= 0:
            continue
        step = 2.0 ** (np.floor(np.log2(max(abs(logit), 1e-3))) - bits)
        if lead <= TIE_STEPS * step:
            yield Fault(
                f"the best two logits after node {node} are {lead:.4g} apart, at {logit:.4g}, where "
                f"{dtype} has steps of {step:.4g}",
                node,
            )


def _row_faults(
    view: StepView, name: str, rows: TargetRows | FilteredRows, probs: Table | None
) -> Iterator[Fault]:
    """probs: top_probs as a table."""
    if probs is None:
        return
    falls = (probs[:, 1:] <= probs[:, :-1]).all() and (probs[:, -1:] >= 0).all()
    if not falls or not (probs.sum(axis=1) <= 1 + MASS_TOLERANCE).all():  # or one is null
        yield from _wrong_rows(name, probs)
    yield from _other_probs(view, name, rows)


def _wrong_rows(name: str, probs: Table) -> Iterator[Fault]:
    known = np.where(np.isnan(probs), 0.0, probs)
    outside = ((known < 0) | (known > 1 + MASS_TOLERANCE)).any(axis=1)
    rises = (probs[:, 1:] > probs[:, :-1]).any(axis=1)
    heavy = known.sum(axis=1) > 1 + MASS_TOLERANCE
    for node in np.flatnonzero(outside | rises | heavy).tolist():
        says = "are not in [0, 1]" if outside[node] else "rise" if rises[node] else "sum to more than 1"
        yield Fault(f"target.{name}.top_probs[{node}] {says}", node)


def _other_probs(view: StepView, name: str, rows: TargetRows | FilteredRows) -> Iterator[Fault]:
    """Nodes whose probability is not that of their token in their parent's row."""
    tree, own = view.step.tree, rows.node_probs
    if own is None or rows.top_ids is None or rows.top_probs is None or view.depths is None:
        return
    for node in range(1, view.n):
        parent, token, found = tree.parents[node], tree.tokens[node], own[node]
        if found is None or token not in rows.top_ids[parent]:
            continue
        listed = rows.top_probs[parent][rows.top_ids[parent].index(token)]
        if listed is not None and abs(found - listed) > SAME_PROB * listed + 1e-7:
            yield Fault(
                f"target.{name}.node_probs[{node}] = {found:.6g}, in the row of its parent, node {parent}, "
                f"token {token} has {listed:.5g}",
                node,
            )


def _temperature(view: StepView) -> float | None:
    """The one temperature that turns the raw rows into the filtered ones; None where there is no such one."""
    found = _from_tops(view)
    if len(found) < LEAST_ROWS:
        found = np.append(found, list(_from_siblings(view)))
    if len(found) < LEAST_ROWS:
        return None
    middle = float(np.sort(found)[len(found) // 2])
    return middle if (np.abs(found / middle - 1) < SAME_TEMPERATURE).all() else None


def _from_tops(view: StepView) -> Table:
    """A temperature from the first and the last token of each row that both top lists have at one place."""
    target, probs, filtered = view.step.target, view.raw_tops, view.filtered_tops
    if target is None or target.filtered is None or probs is None or filtered is None:
        return np.empty(0)
    ids, filtered_ids = target.raw.top_ids, target.filtered.top_ids
    if not filtered_ids:
        return np.empty(0)
    width = min(probs.shape[1], filtered.shape[1])
    usable = (probs[:, :width] > LEAST_PROB) & (filtered[:, :width] > LEAST_PROB)
    if ids != filtered_ids:
        usable &= table_of(ids)[:, :width] == table_of(filtered_ids)[:, :width]
    nodes = np.flatnonzero(usable[:, 0])
    last = width - 1 - usable[nodes, ::-1].argmax(axis=1)
    spread = np.log(probs[nodes, 0] / probs[nodes, last])
    filtered_spread = np.log(filtered[nodes, 0] / filtered[nodes, last])
    wide = (spread > LEAST_SPREAD) & (filtered_spread > 0)
    return np.asarray(spread[wide] / filtered_spread[wide])


def _from_siblings(view: StepView) -> Iterator[float]:
    """A temperature from the likeliest and the least likely child of each node."""
    target = view.step.target
    if target is None or target.filtered is None or target.raw.node_probs is None or view.depths is None:
        return
    families: dict[int, list[tuple[float, float]]] = {}
    pairs = zip(view.step.tree.parents, target.raw.node_probs, target.filtered.node_probs, strict=True)
    for parent, raw, filtered in pairs:
        if raw is not None and filtered is not None and min(raw, filtered) > LEAST_PROB:
            families.setdefault(parent, []).append((raw, filtered))
    for family in families.values():
        (high, high_filtered), (low, low_filtered) = max(family), min(family)
        spread, filtered_spread = log(high / low), log(high_filtered / low_filtered)
        if spread > LEAST_SPREAD and filtered_spread > 0:
            yield spread / filtered_spread


def _best_logit(raw: TargetRows, node: int) -> float | None:
    """From the recorded logsumexp and probability."""
    total, prob = raw.logsumexp[node], raw.top_probs[node][0]
    return None if total is None or prob is None or not prob > 0 else total + log(prob)
