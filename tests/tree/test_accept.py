import itertools
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddviz.tree import (
    accepted_paths,
    compile_ddtree_retrieve,
    follow_verified_tree,
    is_greedy,
    node_statuses,
    sample_tree_paths,
    target_probs,
)
from ddviz.tree.links import children_of
from tests.tree.trees import kernel_batch, kernel_copies, kernel_rows, tree_parents

#            0              tokens are the letters' places: root 9, a = 0, b = 1 ...
#        a  / \  b
#          1   2
#      c  / \  d
#        3   4
PARENTS = [-1, 0, 0, 1, 1]
TOKENS = [9, 0, 1, 2, 3]
V = 10


def one_hot(tokens, vocabulary=V):
    return np.eye(vocabulary, dtype=np.float32)[tokens]


def rows_of(**rows):
    """Target rows [1, 5, V] of the tree above; row0={token: probability}. Rows not named are one-hot at 9."""
    probs = one_hot([9] * 5)[None].copy()
    for name, row in rows.items():
        node = int(name.removeprefix("row"))
        probs[0, node] = 0
        for token, p in row.items():
            probs[0, node, token] = p
    return probs


def sample(probs, coins, final_coin=0.5, max_path_len=5, **thresholds):
    return sample_tree_paths(
        *kernel_rows(PARENTS, TOKENS),
        probs,
        np.array([coins], np.float32),
        np.array([final_coin], np.float32),
        max_path_len,
        **thresholds,
    )


def follow(argmax, max_path_len=5):
    return follow_verified_tree(*kernel_rows(PARENTS, TOKENS), np.array([argmax]), max_path_len)


def only_path(acceptance, width=5):
    (path,) = accepted_paths(acceptance, width)
    return path.path.tolist(), path.emitted.tolist()


# ------------------------------------------------------------------ literal: greedy


def test_greedy_follows_the_child_that_is_the_argmax_and_adds_the_last_argmax():
    out = follow([0, 3, 7, 7, 8])
    assert only_path(out) == ([0, 1, 4], [0, 3, 8])
    assert out.accept_index.tolist() == [[0, 1, 4, -1, -1]]
    assert out.predicts.tolist() == [0, 3, 0, 0, 8]
    assert out.num_accepted.tolist() == [2]
    assert np.isnan(out.residual_sum).all()


def test_greedy_stops_where_no_child_is_the_argmax():
    assert only_path(follow([6, 3, 7, 7, 8])) == ([0], [6])
    assert only_path(follow([0, 1, 7, 7, 8])) == ([0, 1], [0, 1])  # 1 is no child of node 1, but of the root


def test_greedy_stops_at_the_depth_limit():
    assert only_path(follow([0, 3, 7, 7, 8], max_path_len=2)) == ([0, 1], [0, 3])
    assert only_path(follow([0, 3, 7, 7, 8], max_path_len=1)) == ([0], [0])


# ------------------------------------------------------------------ literal: sampled

FORK = {"row0": {0: 0.25, 1: 0.5, 5: 0.25}}


@pytest.mark.parametrize(
    ("coin", "path", "emitted"),
    [
        (0.0, [0, 1], [0, 9]),
        (0.25, [0, 1], [0, 9]),  # <=, so the running sum itself still takes the child
        (0.26, [0, 2], [1, 9]),
        (0.75, [0, 2], [1, 9]),
        (0.76, [0], [5]),  # both refused: only 5 is left
    ],
)
def test_a_coin_is_compared_with_the_running_sum_of_the_siblings(coin, path, emitted):
    assert only_path(sample(rows_of(**FORK), [coin, 0.9, 0.9, 0.9, 0.9])) == (path, emitted)


def test_the_coin_of_a_node_decides_among_its_own_children():
    probs = rows_of(row0={0: 0.5, 1: 0.5}, row1={2: 0.5, 3: 0.5})
    for coin0, coin1, path in [(0.4, 0.4, [0, 1, 3]), (0.4, 0.6, [0, 1, 4]), (0.6, 0.4, [0, 2])]:
        assert only_path(sample(probs, [coin0, coin1, 0, 0, 0]))[0] == path


def test_the_bonus_is_drawn_from_the_row_without_its_refused_tokens():
    probs = rows_of(row0={0: 0.25, 1: 0.25, 4: 0.125, 5: 0.125, 6: 0.25})  # residual: 4, 5 and 6, mass 0.5
    for final_coin, bonus, below in [(0.2, 4, 0), (0.3, 5, 0.125), (0.6, 6, 0.25), (0.99, 6, 0.25)]:
        out = sample(probs, [0.9, 0, 0, 0, 0], final_coin)
        assert only_path(out) == ([0], [bonus])
        assert out.residual_sum[0] == 0.5
        assert out.bonus_cdf[0] == below
        assert out.bonus_prob[0] == probs[0, 0, bonus]


def test_refused_tokens_of_one_row_stay_in_the_next():
    # 0 is refused below the root, then node 2 is taken, and 0 may be the bonus after it.
    probs = rows_of(row0={0: 0.25, 1: 0.75}, row2={0: 1.0})
    assert only_path(sample(probs, [0.5, 0, 0.5, 0, 0])) == ([0, 2], [1, 0])


def test_the_depth_limit_examines_no_child_and_draws_from_the_whole_row():
    probs = rows_of(row0={0: 1.0}, row1={2: 0.5, 3: 0.5})
    out = sample(probs, [0.5, 0.9, 0, 0, 0], final_coin=0.1, max_path_len=2)
    assert only_path(out) == ([0, 1], [0, 2])  # 2 is the token of node 3, but it comes as the bonus
    assert out.residual_sum[0] == 1


def test_a_path_of_one_is_the_root_and_a_bonus():
    assert only_path(sample(rows_of(**FORK), [0.1] * 5, final_coin=0.1, max_path_len=1)) == ([0], [0])


def test_no_room_for_the_root_is_an_error():
    with pytest.raises(ValueError, match="max_path_len = 0, must be >= 1"):
        sample(rows_of(), [0.5] * 5, max_path_len=0)
    with pytest.raises(ValueError, match="max_path_len = 0, must be >= 1"):
        follow([0] * 5, max_path_len=0)


# ------------------------------------------------------------------ literal: the kernel's defects, kept


def test_a_coin_of_zero_accepts_a_first_child_of_probability_zero():
    probs = rows_of(row0={5: 1.0})
    assert only_path(sample(probs, [0.0] + [0.5] * 4))[0] == [0, 1]
    assert only_path(sample(probs, [1e-30] + [0.5] * 4)) == ([0], [5])


def test_a_residual_without_mass_yields_the_last_token_of_the_vocabulary():
    # Float rounding left the children a mass below 1 and the rest nothing.
    out = sample(rows_of(row0={0: 0.25, 1: 0.5}), [0.9, 0, 0, 0, 0])
    assert only_path(out) == ([0], [V - 1])
    assert (out.residual_sum[0], out.bonus_cdf[0], out.bonus_prob[0]) == (0, 0, 0)


def test_a_row_of_nan_accepts_nothing_and_yields_the_last_token():
    probs = rows_of()
    probs[0, 0] = np.nan
    assert only_path(sample(probs, [0.5] * 5)) == ([0], [V - 1])


# ------------------------------------------------------------------ reference: the exact distribution
#
# Target rows are multiples of 1/G, so every comparison is exact in float32. A coin has G equally likely
# cells, the middle of each stands for all of it; the final coin has as many as the residual has units of 1/G.
# Going through every combination therefore gives the distribution of the output as exact fractions.

G = 8


class Case:
    def __init__(self, parents, tokens, rows, max_path_len, acc=1.0, single=1.0):
        self.parents, self.tokens = parents, tokens
        self.rows = np.array(rows, np.float32) / G  # [n, V]
        self.max_path_len, self.thresholds = max_path_len, (single, acc)

    def run(self, coins, final_coins):
        bs = len(coins)
        arrays = kernel_copies(self.parents, self.tokens, bs)
        probs = np.broadcast_to(self.rows, (bs, *self.rows.shape))
        return sample_tree_paths(*arrays, probs, coins, final_coins, self.max_path_len, *self.thresholds)

    def outcomes(self):
        """{(path, emitted tokens): exact probability}."""
        n = len(self.parents)
        inner = sorted({parent for parent in self.parents if parent != -1})
        cells = list(itertools.product(range(G), repeat=len(inner)))
        coins = np.full((len(cells), n), 0.5, np.float32)
        coins[:, inner] = (np.array(cells).reshape(len(cells), -1) + 0.5) / G
        residual = self.run(coins, np.full(len(coins), 0.5, np.float32)).residual_sum
        units = (residual * G).astype(int)
        assert (units == residual * G).all()
        units = np.maximum(units, 1)  # without mass, one outcome
        finals = np.concatenate([(np.arange(m) + 0.5) / m for m in units]).astype(np.float32)
        out = self.run(np.repeat(coins, units, axis=0), finals)
        weights = [Fraction(1, len(cells) * int(m)) for m in units for _ in range(m)]
        found = defaultdict(Fraction)
        for weight, (path, emitted) in zip(weights, accepted_paths(out, n), strict=True):
            found[tuple(path.tolist()), tuple(emitted.tolist())] += weight
        assert sum(found.values()) == 1
        return found


def exact(row):
    return [Fraction(int(x * G), G) for x in row]


def distribution_after(outcomes, node, vocabulary):
    """Exact distribution of the token emitted after `node`, given that the path goes through it; or None."""
    mass = [Fraction(0)] * vocabulary
    for (path, emitted), weight in outcomes.items():
        if node in path:
            mass[emitted[path.index(node)]] += weight
    return [m / sum(mass) for m in mass] if sum(mass) else None


def random_rows(rng, n, vocabulary):
    """Rows [n, V] of whole numbers that sum to G, zeros among them."""
    return rng.multinomial(G, rng.dirichlet([0.7] * vocabulary, size=n))


TREES = {
    "root alone": ([-1], [9]),
    "chain": ([-1, 0, 1, 2], [0, 1, 0, 3]),
    "siblings": ([-1, 0, 0, 0], [0, 3, 1, 0]),
    "all tokens as siblings": ([-1, 0, 0, 0, 0], [0, 0, 1, 2, 3]),
    "fork below a fork": ([-1, 0, 0, 1, 1], [0, 2, 1, 2, 0]),
    "both children fork": ([-1, 0, 0, 1, 2, 2], [0, 2, 1, 2, 0, 3]),
}


@pytest.mark.parametrize("max_path_len", [1, 2, 3, 4])
@pytest.mark.parametrize("name", TREES)
def test_emitted_tokens_have_exactly_the_targets_distribution(name, max_path_len):
    """For the first token, and for each next one given the path so far, whatever the tree holds."""
    parents, tokens = TREES[name]
    for seed in range(2):
        rows = random_rows(np.random.default_rng(seed), len(parents), vocabulary=4)
        case = Case(parents, tokens, rows, max_path_len)
        outcomes = case.outcomes()
        assert distribution_after(outcomes, 0, 4) == exact(case.rows[0])
        for node in range(1, len(parents)):
            after = distribution_after(outcomes, node, 4)
            assert after is None or after == exact(case.rows[node])


def test_the_second_token_given_the_first_has_the_targets_distribution():
    """The same said without nodes: P(second | first) for a first token that the tree holds."""
    parents, tokens = TREES["fork below a fork"]
    rows = [[2, 3, 2, 1], [1, 2, 1, 4], [3, 3, 1, 1], [8, 0, 0, 0], [0, 8, 0, 0]]
    case = Case(parents, tokens, rows, max_path_len=3)
    second = defaultdict(lambda: [Fraction(0)] * 4)
    for (_, emitted), weight in case.outcomes().items():
        if len(emitted) > 1:
            second[emitted[0]][emitted[1]] += weight
    assert set(second) == {2, 1}
    for first, node in [(2, 1), (1, 2)]:
        assert [m / sum(second[first]) for m in second[first]] == exact(case.rows[node])
        assert sum(second[first]) == exact(case.rows[0])[first]


def biased_first_token(row, children, acc, single):
    """What the rule makes of one row: each child takes the coins from the last threshold to its own."""
    taken, running, low, refused = [Fraction(0)] * len(row), Fraction(0), Fraction(0), []
    for token in children:
        running += row[token]
        high = Fraction(1) if row[token] >= single else min(Fraction(1), running / acc)
        taken[token] += max(high - low, Fraction(0))
        low = max(low, high)
        refused.append(token)
    residual = [Fraction(0) if token in refused else p for token, p in enumerate(row)]
    if low < 1 and not sum(residual):
        residual[-1] = Fraction(1)
    return [t + (1 - low) * r / (sum(residual) or 1) for t, r in zip(taken, residual, strict=True)]


@pytest.mark.parametrize("acc", [Fraction(1), Fraction(1, 2), Fraction(1, 4)])
@pytest.mark.parametrize("single", [Fraction(1), Fraction(1, 2), Fraction(1, 4)])
def test_thresholds_below_one_bias_the_output_exactly_as_the_rule_says(acc, single):
    parents, tokens = TREES["siblings"]
    for seed in range(4):
        rows = random_rows(np.random.default_rng(seed), len(parents), vocabulary=5)
        case = Case(parents, tokens, rows, 2, float(acc), float(single))
        found = distribution_after(case.outcomes(), 0, 5)
        assert found == biased_first_token(exact(case.rows[0]), tokens[1:], acc, single)


def test_a_threshold_of_one_half_favours_the_draft():
    case = Case([-1, 0], [0, 1], [[4, 2, 1, 1], [8, 0, 0, 0]], 2, acc=0.5)
    # p = 1/4 is taken for coins up to 1/2; the other half is shared 4 : 1 : 1
    expected = [Fraction(1, 3), Fraction(1, 2), Fraction(1, 12), Fraction(1, 12)]
    assert distribution_after(case.outcomes(), 0, 4) == expected


@pytest.mark.parametrize(("p", "path"), [(0.001, [0, 1]), (1e-10, [0]), (0.0, [0])])
def test_a_threshold_of_zero_is_floored_at_1e_9(p, path):
    probs = rows_of(row0={0: p, 5: 1 - p})
    assert only_path(sample(probs, [0.5] * 5, threshold_acc=0.0))[0] == path


def test_sampled_frequencies_of_a_real_vocabulary_match_the_target():
    """20,000 draws of one step over a softmax row of 24 tokens, 3 of them drafted.

    A false alarm, by Hoeffding and a union over the tokens: P(any |f - p| > 0.0223) <=
    2 * 24 * exp(-2 * 20000 * 0.0223^2) = 1.1e-7. The seed is fixed, so it fails always or never.
    """
    draws, vocabulary = 20_000, 24
    rng = np.random.default_rng(11)
    rows = target_probs(rng.normal(0, 2, (6, vocabulary)).astype(np.float32), 0.9, top_p=0.95)
    parents, tokens = [-1, 0, 0, 0, 1, 1], [0, *(-rows[0]).argsort()[:3].tolist(), 5, 6]
    out = sample_tree_paths(
        *kernel_copies(parents, tokens, draws),
        np.broadcast_to(rows, (draws, *rows.shape)),
        rng.random((draws, 6), np.float32),
        rng.random(draws, np.float32),
        3,
    )
    first = [path.emitted[0] for path in accepted_paths(out, 6)]
    frequencies = np.bincount(first, minlength=vocabulary) / draws
    assert np.abs(frequencies - rows[0]).max() < 0.0223


# ------------------------------------------------------------------ property


@given(tree_parents(16), st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 3))
def test_greedy_equals_sampling_from_one_hot_rows(parents, seed, max_path_len, padding):
    rng = np.random.default_rng(seed)
    width = len(parents) + padding
    arrays = kernel_rows(parents, rng.integers(0, 4, len(parents)), width)
    argmax = rng.integers(0, 4, (1, width))
    coins = np.maximum(rng.random((1, width), np.float32), np.float32(1e-30))  # 0 is the kernel's defect
    greedy = follow_verified_tree(*arrays, argmax, max_path_len)
    sampled = sample_tree_paths(*arrays, one_hot(argmax, 4), coins, rng.random(1, np.float32), max_path_len)
    assert (greedy.predicts == sampled.predicts).all()
    assert (greedy.accept_index == sampled.accept_index).all()
    assert (greedy.num_accepted == sampled.num_accepted).all()


@given(st.lists(tree_parents(9), min_size=2, max_size=4), st.integers(0, 2**32 - 1))
def test_a_row_of_a_mixed_batch_decides_as_it_does_alone(trees, seed):
    """Trees of different size, greedy rows (one-hot) among sampled ones, padded to one width."""
    rng = np.random.default_rng(seed)
    batch = [(parents, rng.integers(0, 4, len(parents))) for parents in trees]
    width = max(len(parents) for parents in trees)
    probs = target_probs(rng.normal(0, 2, (len(trees), width, 4)).astype(np.float32), 1.0)
    probs[::2] = one_hot(probs[::2].argmax(axis=-1), 4)
    coins = rng.random((len(trees), width), np.float32)
    finals = rng.random(len(trees), np.float32)
    together = accepted_paths(sample_tree_paths(*kernel_batch(batch), probs, coins, finals, 5), width)
    for row, (parents, tokens) in enumerate(batch):
        n, mine = len(parents), slice(row, row + 1)
        arrays = kernel_rows(parents, tokens)
        alone = sample_tree_paths(*arrays, probs[mine, :n], coins[mine, :n], finals[mine], 5)
        if row % 2 == 0:
            greedy = follow_verified_tree(*arrays, probs[mine, :n].argmax(axis=-1), 5)
            assert only_path(greedy, n) == only_path(alone, n)
        assert only_path(alone, n) == (together[row].path.tolist(), together[row].emitted.tolist())


@given(tree_parents(12), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_outcome_is_a_root_path_and_one_token_per_node_of_it(parents, seed, max_path_len):
    rng = np.random.default_rng(seed)
    n = len(parents)
    tokens = rng.integers(0, 6, n)
    probs = target_probs(rng.normal(0, 2, (1, n, 6)).astype(np.float32), 1.0)
    coins, final = rng.random((1, n), np.float32), rng.random(1, np.float32)
    out = sample_tree_paths(*kernel_rows(parents, tokens), probs, coins, final, max_path_len)
    ((path, emitted),) = accepted_paths(out, n)
    assert path[0] == 0
    assert parents[path[1:]].tolist() == path[:-1].tolist()
    assert emitted[:-1].tolist() == tokens[path[1:]].tolist()
    assert len(path) == len(emitted) == out.num_accepted[0] + 1 <= max_path_len
    assert out.accept_index[0, len(path) :].tolist() == [-1] * (max_path_len - len(path))


# ------------------------------------------------------------------ flat ids, statuses, greedy or not


def test_flat_ids_become_local_by_subtracting_the_rows_offset():
    arrays = kernel_batch([(PARENTS, TOKENS), ([-1, 0], [9, 4]), (PARENTS, TOKENS)])
    argmax = np.array([[6] * 5, [4, 6, 0, 0, 0], [1, 0, 8, 0, 0]])
    out = follow_verified_tree(*arrays, argmax, 3)
    assert out.accept_index.tolist() == [[0, -1, -1], [5, 6, -1], [10, 12, -1]]
    paths = [(path.path.tolist(), path.emitted.tolist()) for path in accepted_paths(out, 5)]
    assert paths == [([0], [6]), ([0, 1], [4, 6]), ([0, 2], [1, 8])]


def test_a_node_is_accepted_or_refused_or_was_never_examined():
    retrieve = compile_ddtree_retrieve(np.array(PARENTS, np.int32))
    links = retrieve.next_token, retrieve.next_sibling
    A, R, U = "accepted", "rejected", "unreached"  # noqa: N806  a table is read by its letters
    assert node_statuses(5, [0], *links) == [A, R, R, U, U]
    assert node_statuses(5, [0, 1], *links) == [A, A, U, R, R]  # node 2 comes after the child that was taken
    assert node_statuses(5, [0, 2], *links) == [A, R, A, U, U]
    assert node_statuses(5, [0, 1, 4], *links) == [A, A, U, R, A]


@given(tree_parents(), st.data())
def test_refused_are_the_children_before_the_one_taken(parents, data):
    retrieve = compile_ddtree_retrieve(parents)
    links = retrieve.next_token, retrieve.next_sibling
    path = [0]
    while (children := children_of(path[-1], *links)) and data.draw(st.booleans()):
        path.append(data.draw(st.sampled_from(children)))
    refused = set()
    for node, taken in itertools.zip_longest(path, path[1:]):
        siblings = children_of(node, *links)
        refused |= set(siblings[: siblings.index(taken)] if taken is not None else siblings)
    expected = [
        "accepted" if i in path else "rejected" if i in refused else "unreached" for i in range(len(parents))
    ]
    assert node_statuses(len(parents), path, *links) == expected


@pytest.mark.parametrize(
    ("path", "next_token", "next_sibling"),
    [
        ([0], [1, -1, -1], [-1, 2, 1]),  # siblings in a circle
        ([0], [7, -1, -1], [-1, -1, -1]),  # a link out of range
        ([0, 99, -5], [1, -1, -1], [-1, -1, -1]),  # a path out of range
        ([0], [1], [-1]),  # links shorter than the tree
        ([], [], []),
    ],
)
def test_statuses_of_a_damaged_step_are_still_statuses(path, next_token, next_sibling):
    statuses = node_statuses(3, path, np.array(next_token), np.array(next_sibling))
    assert set(statuses) <= {"accepted", "rejected", "unreached"}
    assert len(statuses) == 3


@pytest.mark.parametrize(
    ("temperature", "top_k", "greedy"),
    [
        (0.0, 0, True),
        (9.9e-7, 0, True),
        (1e-6, 0, False),
        (1.0, 0, False),
        (1.0, 1, True),
        (1.0, 2, False),
        (math.inf, 1, True),
    ],
)
def test_greedy_means_no_temperature_or_a_single_candidate(temperature, top_k, greedy):
    assert is_greedy(temperature, top_k) is greedy
