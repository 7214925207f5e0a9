"""The algorithm of DDTree in numpy alone: no torch, no clock, randomness only through an argument.

    draft -> build.py -> links.py + mask.py -> (target forward) -> target_probs.py + accept.py -> commit
"""

from ddviz.tree.accept import (
    AcceptedPath,
    TreeAcceptance,
    accepted_paths,
    follow_verified_tree,
    is_greedy,
    node_statuses,
    sample_tree_paths,
)
from ddviz.tree.build import DraftTree, build_tree
from ddviz.tree.links import Retrieve, compile_ddtree_retrieve, depths_of, parents_from_links, traverse
from ddviz.tree.mask import node_positions, pack_mask, tree_mask, unpack_mask
from ddviz.tree.target_probs import target_probs

__all__ = [
    "AcceptedPath",
    "DraftTree",
    "Retrieve",
    "TreeAcceptance",
    "accepted_paths",
    "build_tree",
    "compile_ddtree_retrieve",
    "depths_of",
    "follow_verified_tree",
    "is_greedy",
    "node_positions",
    "node_statuses",
    "pack_mask",
    "parents_from_links",
    "sample_tree_paths",
    "target_probs",
    "traverse",
    "tree_mask",
    "unpack_mask",
]
