import itertools

import numpy as np
import pytest

from ddviz.tree import build_tree
from tests.tree.trees import random_draft


def log(*rows):
    return np.log(np.array(rows, np.float32))


def ids(*rows):
    return np.array(rows, np.int64)


# ------------------------------------------------------------------ literal


def test_nodes_pop_in_falling_score():
    #            0 root            pops:  .6   .6*.7 = .42   .4   .4*.7 = .28
    #        .6 / \ .4                    1        2          3       4
    #          1   3
    #      .7 /     \ .7
    #        2       4
    tree = build_tree(log([0.6, 0.4], [0.7, 0.3]), ids([10, 11], [20, 21]), root_token=7, budget=4)
    assert tree.tokens.tolist() == [7, 10, 20, 11, 20]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 3]
    assert tree.depths.tolist() == [0, 1, 2, 1, 2]
    assert tree.ranks.tolist() == [0, 0, 0, 1, 0]
    assert np.exp(tree.scores) == pytest.approx([1, 0.6, 0.42, 0.4, 0.28])
    assert len(tree) == 5


def test_a_budget_of_one_gives_the_most_likely_first_token():
    tree = build_tree(log([0.6, 0.4], [0.7, 0.3]), ids([10, 11], [20, 21]), root_token=7, budget=1)
    assert tree.tokens.tolist() == [7, 10]
    assert tree.parents.tolist() == [-1, 0]


def test_a_cap_of_one_gives_a_chain():
    draft = log([0.5, 0.5], [0.5, 0.5], [0.5, 0.5]), ids([1, 2], [3, 4], [5, 6])
    tree = build_tree(*draft, root_token=0, budget=10, topk_cap=1)
    assert tree.tokens.tolist() == [0, 1, 3, 5]
    assert tree.parents.tolist() == [-1, 0, 1, 2]


def test_equal_scores_pop_by_depth_then_parent_then_rank():
    # All log-probabilities 0, so every score is 0:      0
    #                                                  1   2
    #                                                 3 4 5 6
    tree = build_tree(np.zeros((2, 2), np.float32), ids([1, 2], [3, 4]), root_token=0, budget=6)
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert tree.ranks.tolist() == [0, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("cap", [0, 3, 99])
def test_no_cap_or_one_above_k_leaves_k_children(cap):
    draft = log([0.4, 0.3, 0.3]), ids([1, 2, 3])
    assert build_tree(*draft, root_token=0, budget=9, topk_cap=cap).tokens.tolist() == [0, 1, 2, 3]


def test_a_budget_above_the_number_of_prefixes_gives_every_prefix():
    logprobs, tokens = random_draft(np.random.default_rng(0), depth=3, k=3)
    tree = build_tree(logprobs, tokens, root_token=0, budget=1000)
    assert len(tree) == 1 + 3 + 9 + 27


def test_scores_are_float32_sums_from_the_root_down():
    # 1e8 in float32 swallows the 1 that float64 would keep.
    logprobs = np.array([[-1e8], [-1], [-1]], np.float32)
    tree = build_tree(logprobs, ids([1], [2], [3]), root_token=0, budget=3)
    assert tree.scores.dtype == np.float32
    assert tree.scores.tolist() == [0, -1e8, -1e8, -1e8]


def test_a_token_of_probability_zero_comes_last():
    logprobs = np.array([[0, -np.inf], [-1, -2]], np.float32)
    tree = build_tree(logprobs, ids([1, 2], [3, 4]), root_token=0, budget=4)
    assert tree.tokens.tolist() == [0, 1, 3, 4, 2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"budget": 0}, "budget = 0, must be >= 1"),
        ({"topk_cap": -1}, "topk_cap = -1, must be >= 0"),
        ({"draft_tokens": ids([1])}, "must be one"),
        ({"draft_logprobs": np.zeros((0, 2)), "draft_tokens": np.zeros((0, 2), int)}, "not empty"),
        ({"draft_logprobs": np.zeros(2), "draft_tokens": np.zeros(2, int)}, "must be one"),
        ({"draft_logprobs": np.array([[0, np.nan]])}, "NaN"),
        ({"draft_logprobs": np.array([[np.inf, 0]])}, "inf"),
    ],
)
def test_senseless_input_is_an_error_that_names_the_value(changes, sentence):
    good = {"draft_logprobs": log([0.6, 0.4]), "draft_tokens": ids([1, 2]), "root_token": 0, "budget": 2}
    with pytest.raises(ValueError, match=sentence):
        build_tree(**(good | changes))


# ------------------------------------------------------------------ reference


def every_prefix_in_order(logprobs, width):
    """All prefixes of ranks, sorted: score falling, then depth, then the parent's place, then rank.

    The parent's place is its own sort key, so this needs no heap and no notion of a frontier.
    """
    keys, scores = {(): ()}, {(): np.float32(0)}
    for depth in range(1, len(logprobs) + 1):
        for prefix in itertools.product(range(width), repeat=depth):
            parent, rank = prefix[:-1], prefix[-1]
            scores[prefix] = scores[parent] + logprobs[depth - 1, rank]
            keys[prefix] = (-scores[prefix], depth, keys[parent], rank)
    ordered = sorted((p for p in keys if p), key=keys.__getitem__)
    return ordered, [scores[p] for p in ordered]


def prefixes_of(tree):
    prefixes = [()]
    for parent, rank in zip(tree.parents[1:], tree.ranks[1:], strict=True):
        prefixes.append((*prefixes[parent], int(rank)))
    return prefixes[1:]


TIES = {
    "distinct values": None,
    "few values": [-0.25, -0.5, -1.0, -2.0],
    "probability one": [0.0, 0.0, -1.0],
    "probability zero": [-0.5, -1.0, -np.inf],
}


@pytest.mark.parametrize("values", TIES.values(), ids=TIES.keys())
@pytest.mark.parametrize("seed", range(12))
def test_the_tree_is_the_best_of_all_prefixes_in_canonical_order(seed, values):
    rng = np.random.default_rng(seed)
    depth, k = rng.integers(1, 5, 2)
    logprobs, tokens = random_draft(rng, depth, k, values)
    for cap in {0, 1, 2, int(k), int(k) + 1}:
        ordered, scores = every_prefix_in_order(logprobs, min(cap or k, k))
        for budget in {1, 2, 5, 17, len(ordered), len(ordered) + 3}:
            tree = build_tree(logprobs, tokens, root_token=5, budget=budget, topk_cap=cap)
            assert prefixes_of(tree) == ordered[:budget]
            assert tree.scores[1:].tolist() == [float(score) for score in scores[:budget]]


# ------------------------------------------------------------------ property


@pytest.mark.parametrize("seed", range(5))
def test_a_large_tree_keeps_its_invariants(seed):
    logprobs, tokens = random_draft(np.random.default_rng(seed), depth=15, k=20)
    tree = build_tree(logprobs, tokens, root_token=5, budget=300, topk_cap=6)
    nodes = np.arange(1, len(tree))
    assert len(tree) == 301
    assert (tree.parents[1:] < nodes).all()
    assert (tree.depths[1:] == tree.depths[tree.parents[1:]] + 1).all()
    assert (np.diff(tree.scores) <= 0).all()
    assert tree.ranks.max() < 6
    assert (tree.tokens[1:] == tokens[tree.depths[1:] - 1, tree.ranks[1:]]).all()
