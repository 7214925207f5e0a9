"""Random and small trees for the tests of the algorithm."""

import numpy as np
from hypothesis import strategies as st

from ddviz.tree import compile_ddtree_retrieve


@st.composite
def tree_parents(draw, max_nodes=24):
    """Parents [n] of any tree: each node hangs below any earlier one."""
    n = draw(st.integers(1, max_nodes))
    return np.array([-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)], np.int32)


def random_draft(rng, depth, k, values=None):
    """Draft rows [depth, k] that fall, from a normal distribution or (for ties) from a few `values`."""
    drawn = rng.normal(-2, 1.5, (depth, k)) if values is None else rng.choice(values, (depth, k))
    logprobs = -np.sort(-np.minimum(drawn, 0).astype(np.float32), axis=1)
    tokens = np.stack([rng.permutation(1000)[:k] for _ in range(depth)])
    return logprobs, tokens


def ancestors(parents, node):
    """The node itself and everything above it, by walking up."""
    chain = []
    while node != -1:
        chain.append(node)
        node = int(parents[node])
    return chain


def depths_of(parents):
    return np.array([len(ancestors(parents, node)) - 1 for node in range(len(parents))], np.int32)


def kernel_rows(parents, tokens, width=None):
    """One tree as the kernels' arrays [1, T]: candidates, retrieve_index, next_token, next_sibling."""
    return kernel_batch([(parents, tokens)], width)


def kernel_batch(trees, width=None):
    """Trees (parents, tokens) of any size, padded to one width T, as the kernels' arrays [bs, T]."""
    width = width or max(len(parents) for parents, _ in trees)
    links = [
        compile_ddtree_retrieve(np.array(parents, np.int32), row, width)
        for row, (parents, _) in enumerate(trees)
    ]
    candidates = np.zeros((len(trees), width), np.int64)
    for row, (_, tokens) in enumerate(trees):
        candidates[row, : len(tokens)] = tokens
    return (
        candidates,
        np.stack([link.index for link in links]),
        np.stack([link.next_token for link in links]),
        np.stack([link.next_sibling for link in links]),
    )


def kernel_copies(parents, tokens, bs):
    """One tree bs times, as the kernels' arrays [bs, T]."""
    candidates, index, next_token, next_sibling = kernel_rows(parents, tokens)
    flat = index + len(parents) * np.arange(bs)[:, None]
    return candidates.repeat(bs, 0), flat, next_token.repeat(bs, 0), next_sibling.repeat(bs, 0)
