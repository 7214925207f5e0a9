"""The GPU builder and compiler against tree/, run by Triton's interpreter on the CPU."""

import dataclasses

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddviz.engines.sglang_plugin import tree_kernels
from ddviz.engines.sglang_plugin.batch import TreeBatch
from tests.engines.sglang_plugin import twins


def draft(rng: np.random.Generator, depths: int, k: int, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows of falling log-probabilities and distinct tokens; coarse ones tie often, as bf16 logits do."""
    logprobs = np.log(rng.dirichlet(np.ones(k + 3) * 0.4, size=depths) + 1e-9).astype(np.float32)
    if coarse:
        logprobs = np.round(logprobs * 2) / 2
    logprobs = -np.sort(-logprobs, axis=1)[:, :k]
    ids = np.stack([rng.permutation(1000)[:k] for _ in range(depths)])
    return np.ascontiguousarray(logprobs, np.float32), ids.astype(np.int64)


def run(drafts, roots, budgets, caps, seq_lens, width, whole_rows=False, kernels=tree_kernels):
    bs = len(drafts)
    out = TreeBatch.empty(bs, width, "cpu")
    kernels.build_trees(
        out,
        torch.from_numpy(np.stack([lp for lp, _ in drafts])),
        torch.from_numpy(np.stack([ids for _, ids in drafts])),
        torch.tensor(roots),
        torch.tensor(budgets, dtype=torch.int32),
        torch.tensor(caps, dtype=torch.int32),
    )
    req_to_token = torch.arange(8 * 200, dtype=torch.int32).view(8, 200) * 7
    rows = torch.tensor([(3 * b + 1) % 8 for b in range(bs)])
    cells = sum(width * (s + width) for s in seq_lens)
    mask = torch.full((cells,), 9, dtype=torch.uint8)
    kernels.compile_trees(out, torch.tensor(seq_lens), rows, req_to_token, mask, whole_rows=whole_rows)
    return out, mask, req_to_token[rows]


# The interpreter takes a second for a wide batch: the ends of the ranges, then small cases at random.
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bs=st.integers(1, 3),
    depths=st.integers(1, 8),
    k=st.integers(1, 9),
    width=st.integers(2, 12),
    coarse=st.booleans(),
    whole_rows=st.booleans(),
)
@example(seed=0, bs=4, depths=8, k=9, width=20, coarse=True, whole_rows=False)
@example(seed=1, bs=2, depths=8, k=9, width=20, coarse=False, whole_rows=True)
@example(seed=2, bs=2, depths=1, k=9, width=20, coarse=False, whole_rows=False)
@example(seed=3, bs=2, depths=8, k=1, width=20, coarse=True, whole_rows=True)
@example(seed=4, bs=1, depths=1, k=1, width=2, coarse=False, whole_rows=False)
def test_a_batch_of_trees_equals_tree_bit_for_bit(seed, bs, depths, k, width, coarse, whole_rows):
    rng = np.random.default_rng(seed)
    drafts = [draft(rng, depths, k, coarse) for _ in range(bs)]
    roots = rng.integers(0, 1000, bs).tolist()
    budgets = rng.integers(1, width, bs).tolist()
    caps = rng.integers(1, k + 1, bs).tolist()
    seq_lens = rng.integers(0, 100, bs).tolist()

    args = drafts, roots, budgets, caps, seq_lens, width, whole_rows
    out, mask, _ = run(*args)
    wanted, wanted_mask, _ = run(*args, kernels=twins)  # from tree/
    for field in dataclasses.fields(TreeBatch):
        got, want = getattr(out, field.name), getattr(wanted, field.name)
        np.testing.assert_array_equal(got.numpy(), want.numpy(), err_msg=field.name)
    np.testing.assert_array_equal(mask.numpy(), wanted_mask.numpy())


def test_nan_log_probabilities_leave_the_root_alone():
    logprobs = np.full((3, 2), np.nan, np.float32)
    out, _, _ = run([(logprobs, np.array([[1, 2]] * 3))], [5], [6], [2], [4], width=7)
    assert out.counts.tolist() == [1]
    assert out.tokens[0].tolist() == [5, 0, 0, 0, 0, 0, 0]
    assert (out.next_token == -1).all()


def test_slots_beyond_the_row_are_the_pad_slot_and_never_a_neighbours():
    """A request whose committed length stands 3 below its row's width: slot 0 is SGLang's dummy slot."""
    rng = np.random.default_rng(0)
    out, _, rows = run([draft(rng, 4, 2, False)], [5], [5], [2], [197], width=6)
    assert out.slots[0, :3].tolist() == rows[0, 197:].tolist()
    assert out.slots[0, 3:].tolist() == [0, 0, 0]
