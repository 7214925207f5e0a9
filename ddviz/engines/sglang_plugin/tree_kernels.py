"""Stages 2 and 3 of 5, draft -> BUILD -> COMPILE -> verify -> commit, on the GPU, for a batch.

In:  the draft head's top_logprobs and top_ids [bs, B-1, K], roots, budgets and caps per request.
Out: TreeBatch: the tree, the retrieve arrays, positions and slots, each [bs, T], and the mask's T x T cells
     written where the attention backend reads them.
Not here: the algorithm in numpy (ddviz/tree/, of which a test holds this equal).

One Triton kernel a stage, no host sync, no temporary.

build    one program a request. Best-first search needs no heap: at any time every node of the tree offers
         exactly one new node, its next child in rank order. The best offer of T lanes is one reduction over
         a 64-bit key that holds the canonical order (score descending, depth ascending, parent, rank).
compile  one program a node: links by comparing parents, the mask row by walking up.
"""

import torch
import triton
import triton.language as tl

from ddviz.engines.sglang_plugin.batch import TreeBatch

# The key of an offer, most significant first: 32 bits score (order-preserving), 8 depth, 12 parent, 12 rank;
# depth, parent and rank are complemented, so that the greatest key is the canonical first.
MAX_NODES = 1 << 12
MAX_DEPTH = (1 << 8) - 1
_NO_OFFER = tl.constexpr(-(1 << 63))


def build_trees(
    out: TreeBatch,
    top_logprobs: torch.Tensor,
    top_ids: torch.Tensor,
    roots: torch.Tensor,
    budgets: torch.Tensor,
    caps: torch.Tensor,
) -> None:
    """Grow the best tree of every request: `ddviz.tree.build_tree`, bit for bit.

    top_logprobs  [bs, B-1, K] float32, each row falling; NaN offers nothing
    top_ids       [bs, B-1, K] int64
    roots         [bs] int64
    budgets       [bs] int32, 1 .. T-1
    caps          [bs] int32, children a parent may have, 1 .. K
    """
    bs, depth_limit, k = top_logprobs.shape
    assert depth_limit <= MAX_DEPTH and out.width <= MAX_NODES and k <= MAX_NODES, (
        f"{depth_limit = } <= {MAX_DEPTH}, {out.width = } and {k = } <= {MAX_NODES}"
    )
    lanes = triton.next_power_of_2(out.width)
    _build[(bs,)](
        top_logprobs,
        top_ids,
        roots,
        budgets,
        caps,
        out.tokens,
        out.parents,
        out.depths,
        out.ranks,
        out.scores,
        out.counts,
        DEPTH_LIMIT=depth_limit,
        K=k,
        T=out.width,
        LANES=lanes,
        num_warps=max(1, min(8, lanes // 64)),
    )


def compile_trees(
    out: TreeBatch,
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    mask: torch.Tensor,
    whole_rows: bool = False,
) -> None:
    """Links, positions, slots and mask of the trees that `build_trees` left in `out`.

    seq_lens      [bs] int64 or int32, committed lengths
    req_to_token  [rows, row_width] int32: slot of every position of every request
    mask          uint8, flat; request b holds T rows of seq_len + T cells, from sum over r < b of
                  T * (seq_len_r + T) on. Only the last T cells of a row are written, because Triton's extend
                  kernel reads no others; with `whole_rows` the prefix's cells too, which the deterministic
                  kernel reads.
    """
    bs = seq_lens.shape[0]
    _compile[(bs, out.width)](
        out.parents,
        out.depths,
        seq_lens,
        req_pool_indices,
        req_to_token,
        req_to_token.stride(0),
        req_to_token.shape[1],
        out.retrieve_index,
        out.next_token,
        out.next_sibling,
        out.positions,
        out.slots,
        mask,
        T=out.width,
        LANES=triton.next_power_of_2(out.width),
        BS_LANES=triton.next_power_of_2(bs),
        WHOLE_ROWS=whole_rows,
        num_warps=1,
    )


@triton.jit
def _build(
    top_logprobs,
    top_ids,
    roots,
    budgets,
    caps,
    tokens_out,
    parents_out,
    depths_out,
    ranks_out,
    scores_out,
    counts_out,
    DEPTH_LIMIT: tl.constexpr,  # noqa: N803 - Triton's constants are capitals
    K: tl.constexpr,  # noqa: N803
    T: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    logprobs = top_logprobs + row * DEPTH_LIMIT * K
    ids = top_ids + row * DEPTH_LIMIT * K
    most = tl.minimum(tl.load(budgets + row), T - 1) + 1
    cap = tl.minimum(tl.load(caps + row), K)

    parent = tl.full((LANES,), -1, tl.int32)
    depth = tl.zeros((LANES,), tl.int32)
    rank = tl.zeros((LANES,), tl.int32)
    score = tl.zeros((LANES,), tl.float32)
    children = tl.zeros((LANES,), tl.int32)  # = rank of the child that a node offers next
    count = 1
    for node in range(1, most):
        offers = (lane < count) & (depth < DEPTH_LIMIT) & (children < cap)
        logprob = tl.load(logprobs + depth * K + children, mask=offers, other=0.0)
        offer = score + logprob
        offers = offers & (offer == offer)  # NaN offers nothing
        key = tl.max(_key(offer, depth + 1, lane, children, offers), axis=0)
        found = key != _NO_OFFER
        new_parent = (0xFFF - ((key >> 12) & 0xFFF)).to(tl.int32)
        new_depth = (0xFF - ((key >> 24) & 0xFF)).to(tl.int32)
        new_rank = (0xFFF - (key & 0xFFF)).to(tl.int32)
        here = (lane == node) & found
        parent = tl.where(here, new_parent, parent)
        depth = tl.where(here, new_depth, depth)
        rank = tl.where(here, new_rank, rank)
        score = tl.where(here, value_of(key), score)
        children += ((lane == new_parent) & found).to(tl.int32)
        count += found.to(tl.int32)

    is_node = (lane > 0) & (lane < count)
    token = tl.load(ids + (depth - 1) * K + rank, mask=is_node, other=0)
    token = tl.where(lane == 0, tl.load(roots + row), token)
    at = row * T + lane
    tl.store(tokens_out + at, token, mask=lane < T)
    tl.store(parents_out + at, parent, mask=lane < T)
    tl.store(depths_out + at, depth, mask=lane < T)
    tl.store(ranks_out + at, rank, mask=lane < T)
    tl.store(scores_out + at, score, mask=lane < T)
    tl.store(counts_out + row, count)


@triton.jit
def _key(score, depth, parent, rank, offers):
    ties = ((0xFF - depth).to(tl.int64) << 24) | ((0xFFF - parent).to(tl.int64) << 12) | (0xFFF - rank)
    return tl.where(offers, high_bits(score) | ties, _NO_OFFER)


@triton.jit
def high_bits(value):
    """A float32 in the upper half of an int64 key, so that keys are ordered as their values."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64) << 32


@triton.jit
def value_of(key):
    """The float32 that `high_bits` put there."""
    ordered = (key >> 32).to(tl.int32)
    bits = tl.where(ordered >= 0, ordered, ordered ^ 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def first_mask_cell(seq_lens, row, node, T: tl.constexpr, BS_LANES: tl.constexpr):  # noqa: N803
    """Where the mask row of a node begins: after T rows of every earlier request and its own."""
    b = tl.arange(0, BS_LANES)
    before = tl.load(seq_lens + b, mask=b < row, other=-T).to(tl.int64) + T
    return T * tl.sum(before, axis=0) + node * (tl.load(seq_lens + row).to(tl.int64) + T)


@triton.jit
def _compile(
    parents,
    depths,
    seq_lens,
    req_pool_indices,
    req_to_token,
    req_to_token_stride,
    row_width,
    retrieve_index_out,
    next_token_out,
    next_sibling_out,
    positions_out,
    slots_out,
    mask_out,
    T: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
    BS_LANES: tl.constexpr,  # noqa: N803
    WHOLE_ROWS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    node = tl.program_id(1)
    lane = tl.arange(0, LANES)
    at = row * T + node
    all_parents = tl.load(parents + row * T + lane, mask=lane < T, other=-1)
    parent = tl.load(parents + at)
    seq_len = tl.load(seq_lens + row).to(tl.int64)

    first_child = tl.min(tl.where((all_parents == node) & (lane > 0), lane, T), axis=0)
    later_sibling = (all_parents == parent) & (lane > node) & (parent >= 0)
    next_sibling = tl.min(tl.where(later_sibling, lane, T), axis=0)
    tl.store(retrieve_index_out + at, at.to(tl.int64))
    tl.store(next_token_out + at, tl.where(first_child < T, first_child, -1).to(tl.int64))
    tl.store(next_sibling_out + at, tl.where(next_sibling < T, next_sibling, -1).to(tl.int64))

    tl.store(positions_out + at, seq_len + tl.load(depths + at))
    where = seq_len + node
    request = tl.load(req_pool_indices + row).to(tl.int64)
    slot = tl.load(req_to_token + request * req_to_token_stride + where, mask=where < row_width, other=0)
    tl.store(slots_out + at, slot.to(tl.int64))

    sees = lane == node
    ancestor = parent
    while ancestor >= 0:
        sees = sees | (lane == ancestor)
        ancestor = tl.load(parents + row * T + ancestor)
    first_cell = first_mask_cell(seq_lens, row, node, T, BS_LANES)
    tl.store(mask_out + first_cell + seq_len + lane, sees.to(tl.uint8), mask=lane < T)
    if WHOLE_ROWS:
        for start in range(0, seq_len, LANES):
            column = start + lane
            tl.store(mask_out + first_cell + column, tl.full((LANES,), 1, tl.uint8), mask=column < seq_len)
