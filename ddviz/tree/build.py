"""Stage 2 of 5, draft -> BUILD -> compile -> verify -> commit: grow a draft tree best-first.

In:  draft_logprobs [B-1, K], draft_tokens [B-1, K], each row sorted by falling log-probability.
Out: DraftTree, nodes in pop order (root = node 0, so parents[i] < i).
Not here: masks (mask.py), links (links.py), acceptance (accept.py), torch.

DDTree (arXiv 2604.12989): one draft forward gives a distribution per position that does not depend on the
tokens between, so the score of a path is the sum of its log-probabilities, and the best tree of a given size
is found by a heap. Popping a node offers exactly two new ones: its next sibling and its first child.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A draft tree of n nodes, root included."""

    tokens: NDArray[np.int64]  # [n] token ids, tokens[0] = root token
    parents: NDArray[np.int32]  # [n], parents[0] = -1, parents[i] < i
    depths: NDArray[np.int32]  # [n], depths[0] = 0, depths[i] = depths[parents[i]] + 1
    ranks: NDArray[np.int32]  # [n], rank in the draft distribution of position depth - 1, ranks[0] = 0
    scores: NDArray[np.float32]  # [n], scores[i] = float32(scores[parents[i]] + logprob), scores[0] = 0

    def __len__(self) -> int:
        return len(self.tokens)


def build_tree(
    draft_logprobs: NDArray[np.float32],
    draft_tokens: NDArray[np.int64],
    root_token: int,
    budget: int,
    topk_cap: int = 0,
) -> DraftTree:
    """Grow the best tree of at most `budget` nodes beside the root.

    draft_logprobs  [B-1, K] float32, natural log, row d holds the candidates of depth d + 1, falling
    draft_tokens    [B-1, K] their token ids, distinct within a row
    budget          >= 1
    topk_cap        children a parent may have; 0 = no cap of its own (K columns are the limit)

    Ties pop in the canonical order: score descending, depth ascending, parent index, rank.
    Raises ValueError for a budget below 1, a negative cap, shapes that differ, NaN or +inf.
    Source: DDTree, arXiv 2604.12989, the best-first construction.
    """
    if budget < 1:
        raise ValueError(f"{budget = }, must be >= 1")
    if topk_cap < 0:
        raise ValueError(f"{topk_cap = }, must be >= 0 (0 = no cap)")
    if draft_logprobs.ndim != 2 or draft_logprobs.shape != draft_tokens.shape or not draft_logprobs.size:
        raise ValueError(
            f"{draft_logprobs.shape = } and {draft_tokens.shape = } must be one [B-1, K], not empty"
        )
    if not (draft_logprobs < np.inf).all():
        raise ValueError("draft_logprobs holds NaN or +inf")
    max_depth, k = draft_logprobs.shape
    width = min(topk_cap or k, k)
    logprobs = draft_logprobs.astype(np.float32)

    def offer(parent: int, depth: int, rank: int) -> None:
        score = scores[parent] + logprobs[depth - 1, rank]  # float32 + float32, as an engine's GPU builder
        heapq.heappush(heap, (-score, depth, parent, rank))

    parents, depths, ranks, scores = [-1], [0], [0], [np.float32(0.0)]
    heap: list[tuple[np.float32, int, int, int]] = []
    offer(parent=0, depth=1, rank=0)
    while heap and len(parents) <= budget:
        negated, depth, parent, rank = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        depths.append(depth)
        ranks.append(rank)
        scores.append(-negated)
        if rank + 1 < width:
            offer(parent, depth, rank + 1)
        if depth < max_depth:
            offer(node, depth + 1, 0)

    depth_index, rank_index = np.array(depths[1:]) - 1, np.array(ranks[1:])
    tokens = np.concatenate(([root_token], draft_tokens[depth_index, rank_index]))
    return DraftTree(
        tokens=tokens.astype(np.int64),
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        ranks=np.array(ranks, np.int32),
        scores=np.array(scores, np.float32),
    )
