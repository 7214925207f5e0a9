import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddviz.tree import node_positions, pack_mask, tree_mask, unpack_mask
from tests.tree.trees import ancestors, depths_of, tree_parents

#            0
#           / \
#          1   2
#         / \
#        3   4
PARENTS = np.array([-1, 0, 0, 1, 1], np.int32)

# ------------------------------------------------------------------ literal


def test_a_node_sees_its_ancestors_and_itself():
    assert tree_mask(PARENTS).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_padding_sees_itself_only_and_is_seen_by_none():
    mask = tree_mask(PARENTS, width=7).astype(int)
    assert mask[5].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert mask[6].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert mask[:5, 5:].sum() == 0


def test_positions_go_by_depth_and_padding_stands_at_the_root():
    depths = np.array([0, 1, 1, 2, 2], np.int32)
    assert node_positions(100, depths).tolist() == [100, 101, 101, 102, 102]
    assert node_positions(100, depths, width=7).tolist() == [100, 101, 101, 102, 102, 100, 100]


def test_bits_are_packed_lowest_first_and_rows_start_on_a_byte():
    mask = np.zeros((9, 9), np.bool_)
    mask[0, 0] = mask[1, 1] = mask[2, 8] = True
    packed = pack_mask(mask)
    assert packed[:6] == bytes([0b1, 0, 0b10, 0, 0, 0b1])
    assert len(packed) == 9 * 2


@pytest.mark.parametrize(("size", "width"), [(0, 1), (7, 8), (9, 8), (17, 9), (1, 0)])
def test_bytes_of_another_width_are_an_error(size, width):
    with pytest.raises(ValueError, match=f"a {width} x {width} mask takes"):
        unpack_mask(bytes(size), width)


# ------------------------------------------------------------------ reference


@given(tree_parents(), st.integers(0, 9))
def test_each_row_is_the_chain_of_ancestors(parents, padding):
    n = len(parents)
    mask = tree_mask(parents, n + padding)
    for node in range(n):
        assert np.flatnonzero(mask[node]).tolist() == sorted(ancestors(parents, node))
    for pad in range(n, n + padding):
        assert np.flatnonzero(mask[pad]).tolist() == [pad]


@given(tree_parents(), st.integers(0, 10_000))
def test_a_position_counts_the_tokens_a_node_sees(parents, prefix_len):
    # prefix_len committed tokens and the chain up to the node itself, which stands at the last of them
    positions = node_positions(prefix_len, depths_of(parents))
    assert positions.tolist() == (prefix_len + tree_mask(parents).sum(axis=1) - 1).tolist()


# ------------------------------------------------------------------ property


@pytest.mark.parametrize("width", [0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65])
def test_a_mask_survives_packing(width):
    mask = np.random.default_rng(width).random((width, width)) < 0.5
    packed = pack_mask(mask)
    assert len(packed) == width * ((width + 7) // 8)
    assert (unpack_mask(packed, width) == mask).all()
