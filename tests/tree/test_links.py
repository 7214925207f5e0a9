import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddviz.tree import build_tree, compile_ddtree_retrieve, parents_from_links, traverse
from ddviz.tree.links import children_of
from tests.tree.trees import random_draft, tree_parents

#            0
#           / \
#          1   2
#         / \
#        3   4
PARENTS = np.array([-1, 0, 0, 1, 1], np.int32)

# ------------------------------------------------------------------ literal


def test_links_name_the_first_child_and_the_next_sibling():
    retrieve = compile_ddtree_retrieve(PARENTS)
    assert retrieve.next_token.tolist() == [1, 3, -1, -1, -1]
    assert retrieve.next_sibling.tolist() == [-1, 2, -1, 4, -1]
    assert retrieve.index.tolist() == [0, 1, 2, 3, 4]


def test_padding_is_unlinked_and_the_flat_index_counts_it():
    retrieve = compile_ddtree_retrieve(PARENTS, row=2, width=7)
    assert retrieve.next_token.tolist() == [1, 3, -1, -1, -1, -1, -1]
    assert retrieve.next_sibling.tolist() == [-1, 2, -1, 4, -1, -1, -1]
    assert retrieve.index.tolist() == [14, 15, 16, 17, 18, 19, 20]


def test_the_walk_is_depth_first_and_leaves_the_root_out():
    retrieve = compile_ddtree_retrieve(PARENTS)
    walk = traverse(retrieve.next_token, retrieve.next_sibling)
    assert walk == [(1, 0), (3, 1), (4, 1), (2, 0)]


def test_children_come_in_link_order():
    retrieve = compile_ddtree_retrieve(PARENTS)
    links = retrieve.next_token, retrieve.next_sibling
    assert [children_of(node, *links) for node in range(5)] == [[1, 2], [3, 4], [], [], []]


def test_a_root_alone_has_no_links():
    retrieve = compile_ddtree_retrieve(np.array([-1], np.int32))
    assert retrieve.next_token.tolist() == retrieve.next_sibling.tolist() == [-1]
    assert traverse(retrieve.next_token, retrieve.next_sibling) == []


@pytest.mark.parametrize(
    ("parents", "width", "sentence"),
    [
        ([-1, 0, 2], None, r"parents\[2\] = 2, must be in \[0, 2\)"),
        ([-1, -1], None, r"parents\[1\] = -1"),
        ([0, 0], None, r"parents\[0\] must be -1"),
        ([], None, r"parents\[0\] must be -1"),
        ([-1, 0, 0], 2, "width = 2 < 3 nodes"),
    ],
)
def test_what_is_no_tree_is_an_error(parents, width, sentence):
    with pytest.raises(ValueError, match=sentence):
        compile_ddtree_retrieve(np.array(parents, np.int32), width=width)


@pytest.mark.parametrize(
    ("next_token", "next_sibling", "sentence"),
    [
        ([1, -1, -1], [-1, 1, -1], "reach node 1 twice"),  # its own sibling
        ([1, 0, -1], [-1, -1, -1], "reach node 0 twice"),  # the root as a child
        ([1, 2, -1], [-1, 2, -1], "reach node 2 twice"),  # child and sibling at once
        ([1, -1, -1], [-1, 3, -1], r"points to 3, must be -1 or in \[0, 3\)"),
        ([-2, -1, -1], [-1, -1, -1], "points to -2"),
    ],
)
def test_the_walk_ends_on_damaged_links(next_token, next_sibling, sentence):
    with pytest.raises(ValueError, match=sentence):
        traverse(np.array(next_token), np.array(next_sibling))


def test_a_circle_of_siblings_is_an_error():
    with pytest.raises(ValueError, match="siblings below node 0 form a cycle"):
        children_of(0, np.array([1, -1, -1]), np.array([-1, 2, 1]))


# ------------------------------------------------------------------ reference


@given(tree_parents(), st.integers(0, 5), st.integers(0, 9))
def test_links_are_the_nearest_larger_index_with_the_right_parent(parents, row, padding):
    n = len(parents)
    retrieve = compile_ddtree_retrieve(parents, row, n + padding)
    for node in range(n):
        children = [i for i in range(n) if parents[i] == node]
        later_siblings = [i for i in range(node + 1, n) if node and parents[i] == parents[node]]
        assert retrieve.next_token[node] == min(children, default=-1)
        assert retrieve.next_sibling[node] == min(later_siblings, default=-1)
    assert (retrieve.index == row * (n + padding) + np.arange(n + padding)).all()


# ------------------------------------------------------------------ property


@given(tree_parents(), st.integers(0, 5), st.integers(0, 9))
def test_parents_survive_the_round_trip_through_links(parents, row, padding):
    retrieve = compile_ddtree_retrieve(parents, row, len(parents) + padding)
    rebuilt = parents_from_links(retrieve.next_token, retrieve.next_sibling)
    assert rebuilt.tolist() == parents.tolist() + [-1] * padding


@given(tree_parents(), st.integers(0, 9))
def test_the_walk_meets_every_node_but_the_root_once_and_no_padding(parents, padding):
    retrieve = compile_ddtree_retrieve(parents, width=len(parents) + padding)
    walk = traverse(retrieve.next_token, retrieve.next_sibling)
    assert sorted(node for node, _ in walk) == list(range(1, len(parents)))


@pytest.mark.parametrize("seed", range(10))
def test_siblings_come_in_descending_score(seed):
    tree = build_tree(*random_draft(np.random.default_rng(seed), depth=6, k=8), root_token=0, budget=60)
    retrieve = compile_ddtree_retrieve(tree.parents)
    for node in range(len(tree)):
        siblings = children_of(node, retrieve.next_token, retrieve.next_sibling)
        assert (np.diff(tree.scores[siblings]) <= 0).all()
        assert tree.ranks[siblings].tolist() == list(range(len(siblings)))
