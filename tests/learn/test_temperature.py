"""Accept lengths at other temperatures: exact where the recorded run was, between bounds elsewhere."""

import dataclasses
import itertools

import msgspec
import numpy as np
import pytest

from ddviz.learn.temperature import TEMPERATURES, expected_length, lengths_at
from ddviz.trace import load
from ddviz.trace.schema import Step, Target, TargetRows
from ddviz.tree import compile_ddtree_retrieve, sample_tree_paths, target_probs
from tests.learn.test_lessons import ROOT
from tests.viewer.fixtures import write_trace


def taught(name):
    return load(ROOT / f"traces/{name}.ddviz")


def test_a_greedy_run_has_its_recorded_lengths_at_temperature_0():
    trace = taught("quicksort-greedy")
    for step in trace.steps:
        assert expected_length(step, 0) == (step.accept.num_accepted + 1,) * 2


@pytest.mark.parametrize(("name", "temperature"), [("quicksort-t1.0", 1.0), ("quicksort-t0.6", 0.6)])
def test_a_sampled_run_is_within_chance_of_what_is_expected_of_it(name, temperature):
    """Four standard errors: recorded runs are fixed, so this never gives a false alarm by itself."""
    trace = taught(name)
    low, high = lengths_at(trace, (temperature,))[0]
    taken = np.array([step.accept.num_accepted + 1 for step in trace.steps])
    error = 4 * taken.std() / len(taken) ** 0.5
    assert low - error < taken.mean() < high + error


def test_the_probabilities_at_the_recorded_temperature_are_the_recorded_ones():
    """At 1 nothing is unknown; at 0.6 the recorded probability after temperature lies within the bounds."""
    for name, temperature in (("quicksort-t1.0", 1.0), ("quicksort-t0.6", 0.6)):
        for step in taught(name).steps:
            probs = [1.0]
            for parent, prob in zip(step.tree.parents[1:], step.target.filtered.node_probs[1:], strict=True):
                probs.append(probs[parent] * prob)
            low, high = expected_length(step, temperature)
            assert low - 2e-3 <= sum(probs) <= high + 2e-3


def test_bounds_hold_the_exact_value_and_the_walk_of_the_engine(tmp_path):
    """A vocabulary of 12, 4 of them kept: the exact expectation, and 4,000 seeded walks at 4 errors."""
    rng = np.random.default_rng(5)
    parents = np.array([-1, 0, 0, 1, 1, 2])
    logits = rng.normal(0, 1.2, (6, 12)).astype(np.float32)
    likely = np.argsort(-logits, -1)
    ranks = [0, 1, 0, 0, 5, 4]  # of each token in its parent's row: two are beyond the 4 that are kept
    tokens = np.array([0, *(likely[parents[i], ranks[i]] for i in range(1, 6))])
    step = with_target(write_trace(tmp_path / "t.ddviz", steps=1).steps[0], parents, tokens, logits)
    links = compile_ddtree_retrieve(parents)
    for temperature in (0.3, 0.7, 1.0):
        probs = target_probs(logits, temperature)
        reached = [1.0]
        for node in range(1, 6):
            reached.append(reached[parents[node]] * float(probs[parents[node], tokens[node]]))
        low, high = expected_length(step, temperature)
        assert low - 1e-4 <= sum(reached) <= high + 1e-4
        assert (high - low < 1e-9) == (temperature == 1.0)
        lengths = []
        for _ in range(4000):
            coins, final = rng.random(6, dtype=np.float32), rng.random(1, dtype=np.float32)
            arrays = (tokens, links.index, links.next_token, links.next_sibling)
            walk = sample_tree_paths(*(a[None] for a in arrays), probs[None], coins[None], final, 6)
            lengths.append(int(walk.num_accepted[0]) + 1)
        error = 4 * np.std(lengths) / 4000**0.5
        assert low - error < np.mean(lengths) < high + error


def test_lengths_fall_where_the_draft_is_the_targets_favourite_and_are_bounds():
    bounds = lengths_at(taught("quicksort-greedy"))
    assert len(bounds) == len(TEMPERATURES) and all(low <= high for low, high in bounds)
    assert all(later.low < earlier.low for earlier, later in itertools.pairwise(bounds[2:]))


def test_what_is_not_recorded_has_no_lengths_and_other_temperatures_are_refused():
    trace = taught("quicksort-greedy")
    blind = [msgspec.structs.replace(trace.steps[0], target=None), *list(trace.steps)[1:]]
    assert lengths_at(dataclasses.replace(trace, steps=blind)) is None
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        expected_length(trace.steps[0], 1.5)


def with_target(step: Step, parents, tokens, logits) -> Step:
    """The step with this tree, and of its target the 4 likeliest tokens and the tree's."""
    raw = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = np.argsort(-raw, -1)[:, :4]
    step.tree.tokens, step.tree.parents = tokens.tolist(), parents.tolist()
    step.target = Target(
        raw=TargetRows(
            top_ids=order.tolist(),
            top_probs=np.take_along_axis(raw, order, -1).astype(float).tolist(),
            entropy=[],
            logsumexp=[],
            argmax=raw.argmax(-1).tolist(),
            margin=[],
            node_probs=[None, *raw[parents[1:], tokens[1:]].astype(float).tolist()],
        )
    )
    return step
