"""Which steps the jumps stop at."""

import msgspec
import pytest

from ddviz.trace.schema import Accept, Retrieve
from ddviz.viewer.marks import near_tie, top1_rejected
from ddviz.viewer.step import step_view
from tests.viewer.test_view import LINKS, TREE, sampled_step, small_step


def test_a_refused_first_candidate_is_marked():
    #      0            1 has rank 0 and was refused for 2
    #     / \
    #    1   2
    assert top1_rejected(small_step())
    taken = Accept(index=[10, 11], num_accepted=1, predicts=[1, 5], bonus=5, kernel="greedy")
    assert not top1_rejected(small_step(accept=taken))


def test_without_links_the_tree_tells_the_order():
    assert top1_rejected(small_step(retrieve=None))


@pytest.mark.parametrize(
    ("coin", "is_close"),
    [(0.305, True), (0.295, True), (0.4, False), (0.505, True), (0.0, False)],
)
def test_a_coin_beside_a_running_sum_is_a_near_tie(coin, is_close):
    # running sums of the root's children: 0.3, then 0.5
    assert near_tie(sampled_step(coins=(coin, 0.9, 0.9, 0.9, 0.9))) is is_close


def test_a_small_margin_is_a_near_tie_of_a_greedy_step():
    step = sampled_step()
    greedy = msgspec.structs.replace(step.accept, kernel="greedy")
    for margin, is_close in ((0.05, True), (0.5, False)):
        raw = msgspec.structs.replace(step.target.raw, margin=[margin] * 5)
        target = msgspec.structs.replace(step.target, raw=raw)
        assert near_tie(msgspec.structs.replace(step, accept=greedy, target=target)) is is_close


def test_marks_agree_with_the_step_views(traces):
    for trace in traces.values():
        for i, step in enumerate(trace.steps):
            nodes = step_view(trace, i)["nodes"]
            refused = any(node["status"] == "rejected" and node["rank"] == 0 for node in nodes)
            assert top1_rejected(step) is refused


@pytest.mark.parametrize(
    "changes",
    [
        {"retrieve": Retrieve(index=[10], next_token=[1], next_sibling=[-1, 1, 1])},
        {"retrieve": Retrieve(index=[10], next_token=[], next_sibling=[])},
        {"accept": Accept(index=[99, -4], num_accepted=1, predicts=[], bonus=5, kernel="sampled")},
        {"tree": msgspec.structs.replace(TREE, ranks=None), "retrieve": LINKS},
    ],
)
def test_a_damaged_step_is_marked_or_not_but_breaks_nothing(changes):
    step = msgspec.structs.replace(sampled_step(), **changes)
    assert isinstance(top1_rejected(step), bool) and isinstance(near_tie(step), bool)
