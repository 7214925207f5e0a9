"""Rules of stage 4, verify: does the accepted path follow from what the acceptance was given?

In:  StepView.
Out: Fault.
Not here: whether the target's logits are right (audit.py), or its distribution survives (losslessness.py).

A sampled decision is replayed from coins, thresholds and node_probs in float32, the very values the kernel
compared, so there is no tolerance. Sums over the vocabulary depend on the order of addition: those have one.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ddviz.check.rules import DRAFTED, Fault, step_rule
from ddviz.check.views import StepView
from ddviz.trace.schema import Sampling
from ddviz.tree import is_greedy
from ddviz.tree.accept import MIN_THRESHOLD_ACC

MASS_TOLERANCE = 1e-4  # float32 sum of a row of the vocabulary
DRAW_TOLERANCE = 1e-5  # float32 running sum of a row against the one that was recorded
PATH_LIMIT = (
    "the residual is the whole row, as if no child was examined: the kernel's path limit S is below B"
)


@step_rule(
    cause="a broken kernel, an overflow in half precision, or KV that was read before it was written",
    look_at="target.nonfinite and target.filtered.node_probs of the first such step",
)
def nonfinite(view: StepView) -> Iterator[Fault]:
    """The target's logits, and all that follows from them, are finite numbers."""
    target, sampling = view.step.target, view.step.sampling
    if target is not None and target.nonfinite:
        yield Fault(f"{target.nonfinite} logits of the target are NaN or infinite")
    lists = {"tree.scores": view.step.tree.scores}
    if target is not None:
        lists["target.raw.node_probs"] = target.raw.node_probs
        lists["target.filtered.node_probs"] = target.filtered.node_probs if target.filtered else None
    for name, values in lists.items():
        for node, value in enumerate(values or []):
            if value is None and (node or name == "tree.scores"):
                yield Fault(f"{name}[{node}] is null, so it was NaN or infinite", node)
    for name in ("residual_sum", "bonus_cdf", "bonus_prob") if sampling is not None else ():
        if getattr(sampling, name) is None:
            yield Fault(f"sampling.{name} is null, so it was NaN or infinite")


@step_rule(
    cause="probabilities were gathered from another node's row, or rows are not normalised",
    look_at="target.raw.node_probs, target.filtered.node_probs; the row of a node's parent, not its own",
    algorithms=DRAFTED,
)
def node_probs(view: StepView) -> Iterator[Fault]:
    """The target's probabilities lie in [0, 1], and those of the children of one node sum to at most 1."""
    target, parents = view.step.target, view.step.tree.parents
    if target is None:
        return
    lists = {
        "raw": target.raw.node_probs,
        "filtered": target.filtered.node_probs if target.filtered else None,
    }
    for name, probs in lists.items():
        if probs is None or (view.depths and _are_probabilities(probs, parents)):
            continue
        sums: dict[int, float] = {}
        met = set[tuple[int, int]]()  # what is met twice among siblings is rule sibling-tokens' business
        for node, p in enumerate(probs):
            if node == 0 or p is None:
                continue
            if not 0 <= p <= 1 + MASS_TOLERANCE:
                yield Fault(f"target.{name}.node_probs[{node}] = {p:.6g}, must be in [0, 1]", node)
            elif (child := (parents[node], view.step.tree.tokens[node])) not in met:
                met.add(child)
                sums[parents[node]] = sums.get(parents[node], 0.0) + p
        for parent, total in sums.items() if view.depths else ():
            if total > 1 + MASS_TOLERANCE:
                yield Fault(f"target.{name}.node_probs of its children sum to {total:.6g}, above 1", parent)


@step_rule(
    cause="flat ids were taken for local ones, or another row's offset was subtracted (local = flat - row*T)",
    look_at="accept.index, batch.row, batch.q_len, tree.parents",
)
def accept_index(view: StepView) -> Iterator[Fault]:
    """The accepted nodes are a path from the root, by flat ids of the request's own row."""
    accept, root, n = view.step.accept, view.step.flat_root, view.n
    if accept.num_accepted != len(accept.index) - 1:
        yield Fault(
            f"num_accepted is {accept.num_accepted}, accept.index holds {len(accept.index)} with the root"
        )
    if view.path is not None:
        return
    path = [flat - root for flat in accept.index]
    for place, (flat, node) in enumerate(zip(accept.index, path, strict=True)):
        name = f"accept.index[{place}] = {flat}"
        if not 0 <= node < n:
            yield Fault(f"{name} is outside the request's nodes, [{root}, {root + n})")
        elif place == 0 and node != 0:
            yield Fault(f"{name}, must be {root}, the root's flat id", node)
        elif place and view.step.tree.parents[node] != path[place - 1]:
            yield Fault(f"{name} is node {node}, no child of node {path[place - 1]} before it", node)
        elif place and node <= path[place - 1]:
            yield Fault(f"{name} is node {node}, which does not come after its parent", node)


@step_rule(
    cause="predicts was read by local instead of flat ids, or not cleared since the last step",
    look_at="accept.predicts, accept.bonus, tree.tokens",
)
def predicts(view: StepView) -> Iterator[Fault]:
    """After each node of the path comes the token of the next one, and the last is the bonus."""
    accept, path = view.step.accept, view.path
    for place, node in enumerate(path[1:] if path else []):
        token = view.step.tree.tokens[node]
        if accept.predicts[place] != token:
            yield Fault(
                f"predicts[{place}] = {accept.predicts[place]}, but node {node} is token {token}", node
            )
    if accept.predicts[-1] != accept.bonus:
        yield Fault(f"the bonus is {accept.bonus}, but the last of predicts is {accept.predicts[-1]}")


@step_rule(
    cause="one kernel served a whole batch by its first request, or a platform falls back to the greedy one",
    look_at="accept.kernel, header.sampling, batch.size",
)
def kernel_choice(view: StepView) -> Iterator[Fault]:
    """A request is verified greedily if its temperature is below 1e-6 or its top_k is 1, else sampled.

    In a batch with sampled requests a greedy one may be sampled too, from rows one-hot at the argmax.
    """
    params, kernel, batch = view.header.sampling, view.step.accept.kernel, view.step.batch
    greedy = is_greedy(params.temperature, params.top_k)
    asked = f"temperature {params.temperature:g} and top_k {params.top_k}"
    if kernel == "greedy" and not greedy:
        yield Fault(f"{asked} ask for sampling, but the greedy kernel decided")
    elif kernel == "sampled" and greedy and (batch is None or batch.size == 1):
        yield Fault(f"{asked} ask for the argmax, but the sampling kernel decided, in a batch of its own")


@step_rule(
    cause="the kernel read the argmax of other rows, or its links are not those recorded",
    look_at="target.raw.argmax (target.filtered where it is recorded), retrieve, accept.index",
)
def greedy_path(view: StepView) -> Iterator[Fault]:
    """Greedy: the path follows the target's argmax; it stops where no child is that, or at depth B-1."""
    target, path, children = view.step.target, view.path, view.children
    if view.step.accept.kernel != "greedy" or target is None or path is None or children is None:
        return
    argmax, tokens = target.argmax, view.step.tree.tokens
    for place, node in enumerate(path):
        emitted = view.step.accept.predicts[place]
        if emitted != argmax[node]:
            yield Fault(
                f"{emitted} was emitted after node {node}, the target's argmax is {argmax[node]}", node
            )
    last = path[-1]
    missed = [child for child in children[last] if tokens[child] == argmax[last]]
    if missed and not view.at_depth_limit:
        yield Fault(
            f"the path stops at node {last}, though node {missed[0]} is its argmax {argmax[last]}", last
        )


@step_rule(
    cause="coins were overwritten by the next step's before the recorder read them",
    look_at="sampling.coins, sampling.final_coin",
)
def coins(view: StepView) -> Iterator[Fault]:
    """Coins lie in [0, 1). A coin of 1 overruns the distribution."""
    sampling = view.step.sampling
    if sampling is None:
        return
    for node, coin in enumerate(sampling.coins):
        if not _is_coin(coin):
            yield Fault(f"coins[{node}] = {coin}, must be in [0, 1) (None: it was NaN)", node)
    if not _is_coin(sampling.final_coin):
        yield Fault(f"final_coin is {sampling.final_coin}, must be in [0, 1)")


@step_rule(
    cause="the kernel used other coins, thresholds or probabilities than those recorded, or other links",
    look_at="sampling.coins, target.filtered.node_probs, header.threshold_single, header.threshold_acc",
)
def sampled_path(view: StepView) -> Iterator[Fault]:
    """Sampled: the coin of each node of the path, against the running sum of its children, takes the next.

    At the end of the path it takes none, unless the path holds B nodes: then no child was examined.
    """
    path, children, probs = view.path, view.children, view.node_probs
    sampling = _replayable(view)
    if sampling is None or path is None or children is None or probs is None:
        return
    for node, taken in [*pairwise(path), (path[-1], None)]:
        if taken is None and view.at_depth_limit:
            return
        replayed, running = _examine(view, children[node], probs, sampling.coins[node])
        if replayed != taken:
            unexamined = taken is None and abs((sampling.residual_sum or 0) - 1) < MASS_TOLERANCE
            yield Fault(
                f"coin {sampling.coins[node]:.6g} of node {node} takes {_child(replayed)} "
                f"(running sums {running}), the kernel took {_child(taken)}",
                node,
                cause=PATH_LIMIT if unexamined else None,
            )


@step_rule(
    cause="mass of refused siblings was not removed, or scratch of an earlier step was not cleared",
    look_at="sampling.residual_sum; the kernel's draft_probs argument must be zero on entry",
)
def residual(view: StepView) -> Iterator[Fault]:
    """The bonus is drawn from what the refused children leave: 1 less their probabilities, within 1e-4."""
    sampling, refused, path = _replayable(view), _refused_last(view), view.path
    if sampling is None or refused is None or path is None or sampling.residual_sum is None:
        return
    probs, tokens = view.node_probs or [], view.step.tree.tokens
    expected = 1.0 - sum({tokens[node]: probs[node] for node in refused}.values())  # by token, as the kernel
    if abs(sampling.residual_sum - expected) > MASS_TOLERANCE:
        yield Fault(
            f"residual_sum is {sampling.residual_sum:.6g}, must be {expected:.6g}, "
            "1 less the probabilities of the children that were refused",
            path[-1],
            cause=PATH_LIMIT if abs(sampling.residual_sum - 1) < MASS_TOLERANCE else None,
        )


@step_rule(
    cause="the bonus was drawn with another coin, or from the row of another node",
    look_at="sampling.final_coin, sampling.residual_sum, sampling.bonus_cdf, sampling.bonus_prob",
)
def bonus_draw(view: StepView) -> Iterator[Fault]:
    """The final coin times the residual mass falls into the bonus's part of it (tolerance 1e-5).

    A token that was refused just before cannot be the bonus: its mass is gone.
    """
    sampling = _replayable(view)
    if sampling is None:
        return
    total, below, p = sampling.residual_sum, sampling.bonus_cdf, sampling.bonus_prob
    if total is None or below is None or p is None or total <= 0:
        return
    drawn = sampling.final_coin * total
    if not below - DRAW_TOLERANCE <= drawn <= below + p + DRAW_TOLERANCE:
        yield Fault(
            f"final_coin {sampling.final_coin:.6g} * residual_sum {total:.6g} = {drawn:.6g} is not in the "
            f"part of bonus {view.step.accept.bonus}, [{below:.6g}, {below + p:.6g})"
        )
    for node in _refused_last(view) or []:
        if view.step.tree.tokens[node] == view.step.accept.bonus:
            yield Fault(f"the bonus {view.step.accept.bonus} is the token that was refused here", node)


@step_rule(
    cause="a coin of exactly 0 passes the kernel's <= against a sum of 0, or the residual had no mass, so "
    "that the last token of the vocabulary was taken",
    look_at="sampling.coins, target.filtered.node_probs, sampling.bonus_prob",
)
def zero_probability(view: StepView) -> Iterator[Fault]:
    """No token is emitted that the target gives probability 0."""
    if _replayable(view) is None:
        return
    path, probs, sampling = view.path, view.node_probs, view.step.sampling
    for above, node in pairwise(path or []):
        if probs is not None and probs[node] == 0 and sampling is not None:
            coin = sampling.coins[above]
            yield Fault(
                f"token {view.step.tree.tokens[node]} of probability 0 was accepted by coin {coin:g}", node
            )
    if sampling is not None and sampling.bonus_prob == 0:
        yield Fault(
            f"the bonus {view.step.accept.bonus} has probability 0 in a residual of {sampling.residual_sum}"
        )


def _are_probabilities(node_probs: list[float | None], parents: list[int]) -> bool:
    """Whether `node_probs` surely has nothing to say: what siblings of one token sum to is not looked at."""
    probs = np.array(node_probs[1:], np.float64)
    probs[np.isnan(probs)] = 0
    if not ((probs >= 0) & (probs <= 1 + MASS_TOLERANCE)).all():
        return False
    return bool((np.bincount(np.array(parents[1:], np.intp), probs) <= 1 + MASS_TOLERANCE).all())


def _replayable(view: StepView) -> Sampling | None:
    """The coins of a sampled step. None where one of them is null, so was NaN: rule coins says so."""
    sampling = view.step.sampling if view.step.accept.kernel == "sampled" else None
    if sampling is None or None in (*sampling.coins, sampling.final_coin):
        return None
    return sampling


def _examine(
    view: StepView, children: list[int], probs: list[float], coin: float
) -> tuple[int | None, list[float]]:
    """The child that a coin takes, and the running sums up to it. In float32, as the kernel."""
    threshold_acc = np.float32(max(view.header.threshold_acc, MIN_THRESHOLD_ACC))
    threshold_single = np.float32(view.header.threshold_single)
    running, sums = np.float32(0), list[float]()
    for child in children:
        p = np.float32(probs[child])
        running += p
        sums.append(round(float(running), 6))
        if np.float32(coin) <= running / threshold_acc or p >= threshold_single:
            return child, sums
    return None, sums


def _refused_last(view: StepView) -> list[int] | None:
    """Children of the path's last node, all refused.

    None where path or probabilities are not known, or the coin does not refuse them all: rule sampled-path.
    """
    path, children, probs, sampling = view.path, view.children, view.node_probs, _replayable(view)
    if path is None or children is None or probs is None or sampling is None:
        return None
    refused = [] if view.at_depth_limit else children[path[-1]]
    if any(np.isnan(probs[node]) for node in refused):
        return None
    taken, _ = _examine(view, refused, probs, sampling.coins[path[-1]])
    return refused if taken is None else None


def _is_coin(coin: float | None) -> bool:
    return coin is not None and 0 <= coin < 1


def _child(node: int | None) -> str:
    return "no child" if node is None else f"node {node}"
