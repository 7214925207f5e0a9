"""Every decision of a step taken again, from the recorded numbers alone, and compared with the engine's.

In:  Step, its Shape, statuses, the comparisons of a sampled step (verdict.py).
Out: one exam per node of the accepted path (what its children were held against, which one these numbers
     take, which one the engine took), and the draw of the bonus. Where they differ, a sentence says so.
Not here: words about single nodes (verdict.py), all other defects (check/doctor.py).

    exam of node 2, coin 0.55       child     p   running sum             by the numbers   engine
                                      3     0.30     0.30     coin above      rejected     rejected
                                      5     0.20     0.50     coin above      rejected     accepted   differs
                                      8     0.10     0.60     coin within     accepted     unreached  differs
"""

from typing import Any

from ddviz.trace import Trace
from ddviz.trace.schema import Header, Sampling, Step
from ddviz.tree.accept import ACCEPTED, REJECTED, UNREACHED
from ddviz.viewer.shape import Shape, at, finite
from ddviz.viewer.verdict import Examined, number

JSON = dict[str, Any]
MASS_TOLERANCE = 1e-4  # float32 sum of a row of the vocabulary
DRAW_TOLERANCE = 1e-5  # float32 running sum of a row against the one that was recorded
NO_CHILD = "none of its children"


def exams(
    trace: Trace, step: Step, shape: Shape, statuses: list[str], judged: dict[int, Examined]
) -> list[JSON]:
    """By node of the accepted path, the root first: how its children were examined."""
    limit = _stops_at_limit(trace.header, step)
    found = []
    for place, parent in enumerate(shape.path):
        is_last = place + 1 == len(shape.path)
        took = None if is_last else shape.path[place + 1]
        if is_last and limit:
            found.append(_unexamined(parent, shape))
        elif step.accept.kernel == "greedy":
            found.append(_greedy_exam(trace, step, shape, statuses, parent, took))
        else:
            found.append(_sampled_exam(trace.header, step, shape, statuses, judged, parent, took))
    return found


def bonus_exam(trace: Trace, step: Step, shape: Shape, judged: dict[int, Examined]) -> JSON:
    """How the bonus follows from the recorded numbers; `differs`: a sentence for each that contradicts it."""
    differs: list[str] = []
    last, accept = (shape.path[-1] if shape.path else 0), step.accept
    if accept.predicts and accept.predicts[-1] != accept.bonus:
        differs.append(f"the bonus is {accept.bonus}, the last of predicts is {accept.predicts[-1]}")
    exam: JSON = {"after": last, "differs": differs}
    if accept.kernel == "greedy":
        argmax = at(step.target.argmax, last) if step.target else None
        if argmax is not None and argmax != accept.bonus:
            differs.append(
                f"the target's argmax after node {last} is id {argmax}, the bonus is id {accept.bonus}"
            )
        return exam
    refused = [] if _stops_at_limit(trace.header, step) else list(at(shape.children, last) or [])
    exam["refused"] = refused
    exam["expected"] = finite(_expected_residual(step, refused, judged))
    if step.sampling is not None:
        exam |= _draw(step.sampling, exam["expected"], differs)
    for node in refused:
        if step.tree.tokens[node] == accept.bonus:
            differs.append(
                f"the bonus is the token of node {node}, whose mass was removed when it was refused"
            )
    return exam


def differences(found: list[JSON]) -> dict[int, str]:
    """By node: the sentence about a decision that the numbers contradict."""
    sentences = {}
    for exam in found:
        for child in exam["children"]:
            if child["differs"]:
                sentences[child["node"]] = (
                    f"by the recorded numbers node {child['node']} is {child['verdict']}, "
                    f"the engine has it {child['engine']}"
                )
    return sentences


def _stops_at_limit(header: Header, step: Step) -> bool:
    """A path holds B nodes with its root: the kernel examines no child of the last."""
    return header.block_size is not None and len(step.accept.index) >= header.block_size


def _sampled_exam(
    header: Header,
    step: Step,
    shape: Shape,
    statuses: list[str],
    judged: dict[int, Examined],
    parent: int,
    took: int | None,
) -> JSON:
    rows, takes, known = [], None, True
    for node in shape.children[parent]:
        held = judged.get(node)
        by_coin = by_single = None
        if held is None:
            known = known and takes is not None  # what comes after the one that is taken needs no numbers
        else:
            by_coin, by_single = held.by_coin, held.by_single(header.threshold_single)
        verdict = UNREACHED if takes is not None else None
        if takes is None and known:
            verdict = ACCEPTED if by_coin or by_single else REJECTED
            takes = node if verdict == ACCEPTED else None
        row = _child(node, verdict, statuses[node])
        if held is not None:
            row |= {"prob": finite(held.prob), "running": finite(held.running)}
            row |= {"bound": finite(held.threshold)}
            row |= {"by_coin": by_coin, "by_single": by_single}
        rows.append(row)
    coin = at(step.sampling.coins, parent) if step.sampling else None
    known = known and (coin is not None or not rows)
    return {
        "parent": parent,
        "kernel": "sampled",
        "coin": finite(coin),
        **_outcome(rows, known, takes, took, parent),
    }


def _greedy_exam(
    trace: Trace, step: Step, shape: Shape, statuses: list[str], parent: int, took: int | None
) -> JSON:
    target = step.target
    argmax = at(target.argmax, parent) if target else None
    rows, takes = [], None
    for node in shape.children[parent]:
        verdict = None
        if argmax is not None:
            hit = step.tree.tokens[node] == argmax
            verdict = UNREACHED if takes is not None else ACCEPTED if hit else REJECTED
            takes = node if verdict == ACCEPTED else takes
        row = _child(node, verdict, statuses[node])
        prob = at(target.raw.node_probs, node) if target else None
        rows.append(row | {"prob": finite(prob)})
    token = None if argmax is None else {"id": argmax, "label": trace.tokens.label(argmax)}
    return {
        "parent": parent,
        "kernel": "greedy",
        "argmax": token,
        "margin": finite(at(target.margin, parent)) if target else None,
        **_outcome(rows, argmax is not None, takes, took, parent),
    }


def _unexamined(parent: int, shape: Shape) -> JSON:
    rows = [_child(node, None, UNREACHED) for node in shape.children[parent]]
    return {"parent": parent, "kernel": "limit", **_outcome(rows, False, None, None, parent)}


def _child(node: int, verdict: str | None, engine: str) -> JSON:
    return {"node": node, "verdict": verdict, "engine": engine, "differs": verdict not in (None, engine)}


def _outcome(rows: list[JSON], known: bool, takes: int | None, took: int | None, parent: int) -> JSON:
    """takes: by the recorded numbers, if `known`; took: by the engine. None is no child."""
    differs = None
    if known and takes != took:
        differs = (
            f"after node {parent} the recorded numbers take {_name(takes)}, the engine took {_name(took)}"
        )
    return {"children": rows, "known": known, "takes": takes, "took": took, "differs": differs}


def _name(node: int | None) -> str:
    return NO_CHILD if node is None else f"node {node}"


def _expected_residual(step: Step, refused: list[int], judged: dict[int, Examined]) -> float | None:
    """1 less the probabilities of the refused children; None where one of them is not known."""
    if any(node not in judged for node in refused) or step.sampling is None:
        return None
    return 1.0 - sum(judged[node].prob for node in refused)


def _draw(sampling: Sampling, expected: float | None, differs: list[str]) -> JSON:
    total, below, prob = sampling.residual_sum, sampling.bonus_cdf, sampling.bonus_prob
    if expected is not None and total is not None and abs(total - expected) > MASS_TOLERANCE:
        differs.append(
            f"the recorded residual is {number(total)}, but 1 less the refused probabilities "
            f"is {number(expected)}"
        )
    if sampling.final_coin is None or total is None:
        return {"drawn": None, "low": None, "high": None}
    drawn = sampling.final_coin * total
    if below is None or prob is None:
        return {"drawn": finite(drawn), "low": None, "high": None}
    low, high = below, below + prob
    if total > 0 and not low - DRAW_TOLERANCE <= drawn <= high + DRAW_TOLERANCE:
        differs.append(
            f"final coin × residual = {number(drawn)} is not in the bonus's part, "
            f"{number(low)} to {number(high)}"
        )
    return {"drawn": finite(drawn), "low": finite(low), "high": finite(high)}
