"""Rules of stages 2 and 3, build and compile: is the step a tree, and do all its encodings say the same tree?

In:  StepView. `shapes` runs first; where it speaks, no other rule sees the step.
Out: Fault.
Not here: whether it is the right tree (rules_draft.py), which path was taken (rules_accept.py).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ddviz.check.rules import DRAFTED, Fault, step_rule
from ddviz.check.views import StepView
from ddviz.trace.schema import Draft, FilteredRows, Retrieve, TargetRows, Tree
from ddviz.tree import tree_mask, unpack_mask

MOST_IDLE_PROB = 1e-4  # target_prob below which a token counted twice is not worth saying


@step_rule(
    cause="the recorder took an array of another request, of another width, or before it was filled",
    look_at="the code that makes the Step; docs/trace-format.md has the shape of every list",
)
def shapes(view: StepView) -> Iterator[Fault]:
    """Arrays of a step agree in length: tree and target lists are n long, the kernel's arrays T, with n <= T.

    Rows of one table are equally long, at least 1, the mask has T rows of bits, and an AR step has one node.
    While this rule speaks, the step's other rules are silent.
    """
    step, n, width = view.step, view.n, view.width
    yield from _wrong_lengths(tree_lengths(step.tree), n, "n")
    yield from _wrong_lengths(kernel_lengths(view), width, "T")
    if step.target is not None:
        yield from _wrong_lengths(target_lengths(step.target.raw, "target.raw"), n, "n")
        if step.target.filtered is not None:
            yield from _wrong_lengths(target_lengths(step.target.filtered, "target.filtered"), n, "n")
            yield from _ragged_target(step.target.filtered, "target.filtered")
        yield from _ragged_target(step.target.raw, "target.raw")
    if step.sampling is not None:
        yield from _wrong_lengths({"sampling.coins": step.sampling.coins}, n, "n")
    if step.draft is not None:
        yield from _ragged_draft(step.draft, view.header.block_size)
    yield from _wrong_counts(view)


@step_rule(
    cause="nodes were numbered in another order than they were popped, or the parent array is another step's",
    look_at="tree.parents",
)
def parents(view: StepView) -> Iterator[Fault]:
    """Node 0 is the root, with parent -1, and every other node comes after its parent."""
    for node, parent in enumerate(view.step.tree.parents):
        if node == 0 and parent != -1:
            yield Fault(f"parents[0] = {parent}, must be -1 (the root)", 0)
        elif node and not 0 <= parent < node:
            yield Fault(f"parents[{node}] = {parent}, must be in [0, {node})", node)


@step_rule(
    cause="the builder was given more positions than the drafter predicts",
    look_at="tree.parents, header.block_size",
    algorithms=DRAFTED,
)
def depth_limit(view: StepView) -> Iterator[Fault]:
    """No node is deeper than the B-1 positions that the drafter predicts."""
    block = view.header.block_size
    for node, depth in enumerate(view.depths or []):
        if block is not None and depth > block - 1:
            yield Fault(f"depth {depth} is beyond B-1 = {block - 1}", node)


@step_rule(
    cause="the candidates of one position hold a token twice, or a node was offered twice",
    look_at="tree.tokens, draft.top_ids",
    algorithms=DRAFTED,
)
def sibling_tokens(view: StepView) -> Iterator[Fault]:
    """Siblings have distinct tokens. The kernels assume it: a token met twice is counted twice.

    NGRAM fills its trees up with nodes of token 0 below the root; they are let pass where that changes
    nothing: in greedy steps, and where the target gives token 0 a probability of at most 1e-4.
    """
    tree, first = view.step.tree, dict[tuple[int, int], int]()
    for node in range(1, view.n):
        twin = first.setdefault((tree.parents[node], tree.tokens[node]), node)
        if twin != node and not _idle_filling(view, node):
            yield Fault(f"token {tree.tokens[node]} is also that of its sibling, node {twin}", node)


@step_rule(
    cause="the links were compiled from another tree, or overwritten before the recorder read them",
    look_at="retrieve.next_token, retrieve.next_sibling against tree.parents",
)
def links(view: StepView) -> Iterator[Fault]:
    """The first-child and next-sibling links rebuild the parents: each node is reached once, a pad never."""
    if view.step.retrieve is None or view.depths is None or view.children is not None:
        return
    if isinstance(view.walk, str):
        yield Fault(view.walk)
        return
    reached = dict(view.walk)
    for node in range(1, view.width):
        parent = view.step.tree.parents[node] if node < view.n else None
        found = reached.get(node)
        if found == parent:
            continue
        if parent is None:
            yield Fault(f"the links reach pad node {node}, below node {found}", node)
        elif found is None:
            yield Fault(f"no link reaches node {node}, a child of node {parent}", node)
        else:
            yield Fault(f"the links put node {node} below node {found}, its parent is {parent}", node)


@step_rule(
    cause="siblings were linked in another order than they were popped",
    look_at="retrieve.next_sibling, tree.scores",
    algorithms=DRAFTED,
)
def sibling_order(view: StepView) -> Iterator[Fault]:
    """Siblings are linked in descending score. The order decides which of them a coin picks."""
    scores = view.step.tree.scores
    if scores is None:
        return
    for siblings in view.children or []:
        for before, after in pairwise(siblings):
            low, high = scores[before], scores[after]
            if low is not None and high is not None and low < high:
                yield Fault(
                    f"score {high:.6g} comes after that of sibling {before}, which is lower: {low:.6g}", after
                )


@step_rule(
    cause="the flat ids were made for another row or another width",
    look_at="retrieve.index, batch.row, batch.q_len",
)
def retrieve_index(view: StepView) -> Iterator[Fault]:
    """The flat id of a node is row*T + node."""
    if view.step.retrieve is None:
        return
    root, width = view.step.flat_root, view.width
    for node, flat in enumerate(view.step.retrieve.index):
        if flat != root + node:
            yield Fault(f"index[{node}] = {flat}, must be {root + node} (row*T + node, T = {width})", node)
    if root % width:
        yield Fault(f"index[0] = {root} is no multiple of T = {width}", 0)


@step_rule(
    cause="positions were taken from another array than the depths",
    look_at="positions, prefix_len, the call of node_positions",
)
def positions(view: StepView) -> Iterator[Fault]:
    """A node stands at prefix_len + its depth: siblings share a position, whatever their index."""
    found, depths, prefix = view.step.positions, view.depths, view.step.prefix_len
    if found is None or depths is None:
        return
    cause = None
    if view.n > 1 and found[: view.n] == list(range(prefix, prefix + view.n)):
        cause = "positions go by node index (the KV slot) instead of depth"
    elif found[0] != prefix and all(found[i] - found[0] == depths[i] for i in range(view.n)):
        cause = f"the committed length was off by {found[0] - prefix} when positions were made"
    for node, depth in enumerate(depths):
        if found[node] != prefix + depth:
            yield Fault(
                f"positions[{node}] = {found[node]}, must be {prefix + depth} "
                f"(prefix_len {prefix} + depth {depth})",
                node,
                cause=cause,
            )


@step_rule(
    cause="the mask was built from another tree, or not refreshed for this step",
    look_at="the attention mask that the verify forward was given, tree.parents",
)
def mask(view: StepView) -> Iterator[Fault]:
    """A node sees its ancestors and itself, and nothing else of the tree."""
    if view.step.mask is None or view.depths is None:
        return
    n = view.n
    if view.step.mask.startswith(_mask_of(view.step.tree.parents, view.width)):
        return
    found = unpack_mask(view.step.mask, view.width)[:n]
    wanted = tree_mask(np.array(view.step.tree.parents), view.width)[:n]
    cause = _mask_cause(found[:, :n], wanted[:, :n])
    for node in np.flatnonzero((found != wanted).any(axis=1)).tolist():
        extra = np.flatnonzero(found[node] & ~wanted[node]).tolist()
        missing = np.flatnonzero(wanted[node] & ~found[node]).tolist()
        parts = [f"sees {_some(extra)}"] * bool(extra) + [f"does not see {_some(missing)}"] * bool(missing)
        chain = np.flatnonzero(wanted[node]).tolist()
        yield Fault(f"node {node} {' and '.join(parts)}; it must see {_some(chain)}", node, cause=cause)


@step_rule(
    cause="the slot list was read from a row that was reused, or was not extended by T before the step",
    look_at="slots; in SGLang req_to_token[row, prefix_len : prefix_len + T]",
)
def slots(view: StepView) -> Iterator[Fault]:
    """The KV slots of a step are distinct: two nodes in one slot overwrite each other."""
    first: dict[int, int] = {}
    for node, slot in enumerate(view.step.slots or []):
        twin = first.setdefault(slot, node)
        if slot < 0:
            yield Fault(f"slots[{node}] = {slot}, must be >= 0", node)
        elif twin != node:
            yield Fault(f"slots[{node}] = {slot} is also the slot of node {twin}", node)


@step_rule(
    cause="ids of a shard of the vocabulary were taken for ids of the whole, or memory was read too early",
    look_at="tree.tokens, accept.predicts, header.vocab_size",
)
def token_range(view: StepView) -> Iterator[Fault]:
    """Token ids lie within the vocabulary."""
    vocab = view.header.vocab_size
    if vocab is None:
        return
    for node, token in enumerate(view.step.tree.tokens):
        if not 0 <= token < vocab:
            yield Fault(f"tokens[{node}] = {token}, must be in [0, {vocab})", node)
    for place, token in enumerate(view.step.accept.predicts):
        if not 0 <= token < vocab:
            yield Fault(f"predicts[{place}] = {token}, must be in [0, {vocab})")


def _idle_filling(view: StepView, node: int) -> bool:
    """Whether a node is one with which SGLang's NGRAM fills a tree up, and it cannot change the output."""
    tree, probs = view.step.tree, view.node_probs
    if view.header.algorithm != "NGRAM" or tree.parents[node] != 0 or tree.tokens[node] != 0:
        return False
    return view.step.accept.kernel == "greedy" or probs is None or not probs[node] > MOST_IDLE_PROB


def tree_lengths(tree: Tree) -> dict[str, Sequence[object] | None]:
    return {"tree.parents": tree.parents, "tree.ranks": tree.ranks, "tree.scores": tree.scores}


def kernel_lengths(view: StepView) -> dict[str, Sequence[object] | None]:
    retrieve = view.step.retrieve or Retrieve(index=[], next_token=[], next_sibling=[])
    lists = {f"retrieve.{name}": getattr(retrieve, name) for name in retrieve.__struct_fields__}
    return {
        "positions": view.step.positions,
        "slots": view.step.slots,
        **(lists if view.step.retrieve is not None else {}),
    }


def target_lengths(rows: TargetRows | FilteredRows, name: str) -> dict[str, Sequence[object] | None]:
    return {f"{name}.{field}": getattr(rows, field) for field in rows.__struct_fields__}


def _wrong_lengths(lists: dict[str, Sequence[object] | None], length: int, letter: str) -> Iterator[Fault]:
    for name, values in lists.items():
        if values is not None and len(values) != length:
            yield Fault(f"{name} holds {len(values)} values, must be {letter} = {length}")


def _ragged_draft(draft: Draft, block_size: int | None) -> Iterator[Fault]:
    ids, logprobs = draft.top_ids, draft.top_logprobs
    if block_size is not None and len(ids) > block_size - 1:
        yield Fault(f"draft.top_ids has {len(ids)} rows, must be at most B-1 = {block_size - 1}")
    if len({len(row) for row in ids}) > 1:
        yield Fault(f"the rows of draft.top_ids have different lengths: {sorted({len(row) for row in ids})}")
    if logprobs is not None and [len(row) for row in logprobs] != [len(row) for row in ids]:
        yield Fault("draft.top_logprobs has another shape than draft.top_ids")


def _ragged_target(rows: TargetRows | FilteredRows, name: str) -> Iterator[Fault]:
    widths = {*map(len, rows.top_ids or []), *map(len, rows.top_probs or [])}
    if len(widths) > 1 or 0 in widths:
        yield Fault(f"the rows of {name}.top_ids and top_probs hold {sorted(widths)} values, must be as many")


def _wrong_counts(view: StepView) -> Iterator[Fault]:
    step, n, width = view.step, view.n, view.width
    if not 1 <= n <= width:
        yield Fault(f"the tree has n = {n} nodes, must be in [1, T = {width}]")
    if view.header.algorithm == "AR" and n != 1:
        yield Fault(f"the tree has n = {n} nodes, must be 1 without a drafter")
    if step.batch is not None and not 0 <= step.batch.row < step.batch.size:
        yield Fault(f"batch.row = {step.batch.row}, must be in [0, {step.batch.size})")
    if step.mask is not None and len(step.mask) != width * -(-width // 8):
        yield Fault(
            f"mask holds {len(step.mask)} bytes, {width} x {width} bits take {width * -(-width // 8)}"
        )
    accept = step.accept
    if not accept.index or len(accept.index) != len(accept.predicts):
        yield Fault(
            f"accept.index holds {len(accept.index)} and predicts {len(accept.predicts)} values, "
            "must be as many, and at least 1"
        )


def _mask_of(parents: list[int], width: int) -> bytes:
    """The rows of the nodes as `pack_mask` has them. Parents come before their children."""
    rows = [1]
    for node, parent in enumerate(parents[1:], start=1):
        rows.append(rows[parent] | 1 << node)
    return b"".join(row.to_bytes(-(-width // 8), "little") for row in rows)


def _mask_cause(found: np.ndarray, wanted: np.ndarray) -> str | None:
    n = len(wanted)
    if (found == np.tri(n, dtype=np.bool_)).all():
        return "a plain causal mask: a CUDA graph captured without the custom mask replays a chain"
    if (found == wanted.T).all():
        return "rows and columns are swapped"
    return None


def _some(nodes: list[int], most: int = 8) -> str:
    """Nodes by number, and how many more."""
    text = ", ".join(map(str, nodes[:most]))
    more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return ("node " if len(nodes) == 1 else "nodes ") + text + more
