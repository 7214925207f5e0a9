"""Packing accepted KV rows, run by Triton's interpreter on the CPU, against plain indexing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddviz.engines.sglang_plugin.batch import AcceptedBatch
from ddviz.engines.sglang_plugin.commit import KVPacker, settle
from ddviz.engines.sglang_plugin.step_buffers import StepBuffers

SLOTS, LAYERS = 40, 2


def pool(**more):
    generator = torch.Generator().manual_seed(3)
    k, v = ([torch.randn((SLOTS, 2, 5), generator=generator) for _ in range(LAYERS)] for _ in range(2))
    return SimpleNamespace(k_buffer=k, v_buffer=v, **more)


def accepted(paths, width, max_path_len):
    index = torch.full((len(paths), max_path_len), -1, dtype=torch.int32)
    for b, path in enumerate(paths):
        index[b, : len(path)] = torch.tensor(path) + b * width
    count = torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32)
    return AcceptedBatch(torch.arange(len(paths) * width, dtype=torch.int32), index, count)


def test_accepted_rows_move_to_the_front_slots_and_nothing_else_changes():
    """In path 0, 2, 3 the KV of node 3 goes where node 2 was: node 2 must have been moved before."""
    width, paths = 6, [[0, 2, 3], [0], [0, 1, 4, 5]]
    slots = torch.tensor(np.random.default_rng(0).permutation(np.arange(1, SLOTS))[: 3 * width]).view(
        3, width
    )
    kv = pool()
    before = [buffer.clone() for buffer in (*kv.k_buffer, *kv.v_buffer)]
    moves = torch.zeros((3, 4, 2), dtype=torch.int64)

    KVPacker(kv).pack(slots, accepted(paths, width, max_path_len=4), moves)

    for old, new in zip(before, (*kv.k_buffer, *kv.v_buffer), strict=True):
        wanted = old.clone()
        for b, path in enumerate(paths):
            wanted[slots[b, : len(path)]] = old[slots[b, path]]
        assert torch.equal(new, wanted)


def test_the_one_buffer_of_an_mla_pool_moves_too():
    latent = torch.randn((SLOTS, 1, 700), dtype=torch.float32)  # 2800 bytes: three tiles
    old = latent.clone()
    slots = torch.tensor([[9, 8, 7, 6]])
    moves = torch.zeros((1, 3, 2), dtype=torch.int64)
    KVPacker(SimpleNamespace(kv_buffer=[latent])).pack(slots, accepted([[0, 3]], 4, max_path_len=3), moves)
    assert moves.tolist() == [[[9, 9], [6, 8], [0, 0]]]
    assert torch.equal(latent[8], old[6])
    assert torch.equal(latent[[9, 7, 6]], old[[9, 7, 6]])


@pytest.mark.parametrize(
    ("kv", "words"),
    [
        (SimpleNamespace(), "cannot move the KV"),
        (pool(use_hnd=True), "one contiguous row a slot"),
        (pool(k_scale_buffer=[torch.ones(1)]), "scales"),
        (SimpleNamespace(kv_buffer=[torch.zeros((8, 2, 4)).transpose(0, 1)]), "one contiguous row a slot"),
    ],
)
def test_a_pool_that_keeps_a_slot_otherwise_is_refused(kv, words):
    with pytest.raises(ValueError, match=words):
        KVPacker(kv)


def test_what_a_step_emits_and_where_its_kv_will_lie():
    """Over the first two of three requests' buffers, as in a batch smaller than the largest."""
    paths, width, path_len = [[0, 2], [0, 1, 3]], 4, 3
    step = StepBuffers.empty(3, width, path_len, "cpu").first(2)
    step.seq_lens.copy_(torch.tensor([10, 20]))
    step.tree.slots.copy_(torch.arange(8).view(2, width) * 7 + 1)
    given = accepted(paths, width, path_len)
    for mine, theirs in zip(step.accepted, given, strict=True):
        mine.copy_(theirs)
    step.accepted.predicts.add_(100)  # the token after flat node i is 100 + i

    settle(step, torch.arange(path_len))

    assert step.accept_lens.tolist() == [2, 3]
    assert step.new_seq_lens.tolist() == [12, 23]
    assert step.emitted[0, :2].tolist() == [100, 102]
    assert step.emitted[1].tolist() == [104, 105, 107]
    assert step.bonus.tolist() == [102, 107]
    hidden = torch.arange(8 * 2).view(8, 2)[step.path].view(2, path_len, 2)
    assert hidden[1, :, 0].tolist() == [8, 10, 14]
    assert step.front_slots.tolist() == [[1, 8, 15], [29, 36, 43]]
    assert step.positions.tolist() == [[10, 11, 12], [20, 21, 22]]
