"""Penalties at every node of a tree, against autoregression's rule written out token by token."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddviz.engines.sglang_plugin.batch import TreeBatch
from ddviz.engines.sglang_plugin.penalties import Penalties, asks

VOCABULARY, WIDTH, PATH_LEN, EOS = 12, 8, 4, 3
#        0
#       / \        node 7 is a pad
#      1   2
#     / \   \
#    3   4   5
#   /
#  6
PARENTS = [-1, 0, 0, 1, 1, 2, 3, -1]
DEPTHS = [0, 1, 1, 2, 2, 2, 3, 0]


def request(rid, prompt_len=5, said=(), **params):
    asked = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
    }
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=list(range(prompt_len)),
        output_ids=list(said),
        tokenizer=SimpleNamespace(eos_token_id=EOS, additional_stop_token_ids=None),
        sampling_params=SimpleNamespace(stop_token_ids=None, **{**asked, **params}),
    )


def trees(rng, roots):
    tree = TreeBatch.empty(len(roots), WIDTH, "cpu")
    tree.tokens[:] = torch.from_numpy(rng.integers(0, VOCABULARY, (len(roots), WIDTH)))
    tree.tokens[:, 0] = torch.tensor(roots)
    tree.parents[:] = torch.tensor(PARENTS, dtype=torch.int32)
    tree.depths[:] = torch.tensor(DEPTHS, dtype=torch.int32)
    return tree


def by_hand(logits, said, params):
    """One row of logits as autoregression changes it after the tokens `said`."""
    row = logits.astype(np.float64).copy()
    for token in range(VOCABULARY):
        count = said.count(token)
        row[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        if count:
            row[token] *= params.repetition_penalty if row[token] < 0 else 1 / params.repetition_penalty
    if len(said) < params.min_new_tokens:
        row[EOS] = -np.inf
    return row


def path_to(node):
    path = []
    while node > 0:
        path.insert(0, node)
        node = PARENTS[node]
    return path


PENALTIES = [
    {"frequency_penalty": 0.7},
    {"presence_penalty": 1.1},
    {"repetition_penalty": 1.4},
    {"min_new_tokens": 9},
    {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2, "min_new_tokens": 8},
]


@pytest.mark.parametrize("params", PENALTIES, ids=lambda p: "+".join(p))
def test_every_node_is_changed_as_autoregression_would_after_its_path(params):
    """Two steps of a batch in which every second request asks: counts of the first step reach the second."""
    rng = np.random.default_rng(7)
    reqs = [request("a", **params), request("b"), request("c", prompt_len=2, **params)]
    pool_rows = torch.tensor([4, 0, 2])
    said = [[int(token)] for token in rng.integers(0, VOCABULARY, 3)]
    penalties = Penalties(6, VOCABULARY, "cpu")
    penalties.prefilled(reqs, pool_rows, torch.tensor([s[0] for s in said]))
    for _ in range(3):
        tree = trees(rng, [s[-1] for s in said])
        seq_lens = torch.tensor(
            [len(r.origin_input_ids) + len(s) - 1 for r, s in zip(reqs, said, strict=True)]
        )
        raw = rng.normal(size=(3 * WIDTH, VOCABULARY)).astype(np.float32) * 3
        logits = torch.from_numpy(raw.copy())
        assert penalties.adjust(reqs, pool_rows, seq_lens, tree, logits, PATH_LEN)
        for b, req in enumerate(reqs):
            for node in range(7):
                tokens = said[b] + [int(tree.tokens[b, i]) for i in path_to(node)]
                wanted = by_hand(raw[b * WIDTH + node], tokens, req.sampling_params)
                np.testing.assert_allclose(logits[b * WIDTH + node].numpy(), wanted, rtol=1e-5, atol=1e-5)
        runs = [[int(t) for t in rng.integers(0, VOCABULARY, n)] for n in (1, 4, 3)]
        emitted = torch.tensor([run + [9] * (PATH_LEN - len(run)) for run in runs])
        penalties.committed(reqs, pool_rows, emitted, torch.tensor([len(run) for run in runs]))
        said = [s + run for s, run in zip(said, runs, strict=True)]


def test_a_batch_in_which_nobody_asks_is_left_alone():
    penalties, reqs = Penalties(4, VOCABULARY, "cpu"), [request("a")]
    tree, logits = trees(np.random.default_rng(0), [1]), torch.zeros((WIDTH, VOCABULARY))
    penalties.prefilled(reqs, torch.tensor([1]), torch.tensor([2]))
    assert penalties.adjust(reqs, torch.tensor([1]), torch.tensor([5]), tree, logits, PATH_LEN) is False
    assert not logits.any() and penalties._counts is None


def test_a_retracted_request_begins_with_what_it_has_said():
    rng = np.random.default_rng(1)
    req = request("a", said=[4, 4, 5], frequency_penalty=1.0)
    penalties, rows = Penalties(4, VOCABULARY, "cpu"), torch.tensor([3])
    penalties.prefilled([request("before", frequency_penalty=1.0)], rows, torch.tensor([8]))
    penalties.prefilled([req], rows, torch.tensor([6]))
    raw = rng.normal(size=(WIDTH, VOCABULARY)).astype(np.float32)
    logits, tree = torch.from_numpy(raw.copy()), trees(rng, [6])
    penalties.adjust([req], rows, torch.tensor([5 + 3]), tree, logits, PATH_LEN)
    np.testing.assert_allclose(
        logits[0].numpy(), by_hand(raw[0], [4, 4, 5, 6], req.sampling_params), rtol=1e-5
    )


@pytest.mark.parametrize("params", PENALTIES[:4], ids=lambda p: "+".join(p))
def test_each_penalty_alone_counts_as_asking(params):
    assert asks(request("a", **params).sampling_params)
    assert not asks(request("a").sampling_params)
