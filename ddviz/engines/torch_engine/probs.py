"""Rows of the vocabulary in torch, where the logits are: target_probs, and the largest of a row.

In:  logits [n, V] float32.
Out: probabilities as ddviz/tree/target_probs.py defines them (a test holds the two equal); top values, ids.
"""

import torch

BLOCK = 64  # of the vocabulary


def top_k(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices [n, k] of the k largest in each row [n, V], falling; which of equal values is open.

    The k largest lie in the k blocks with the largest maxima, so only those are searched: on a CPU four times
    faster than torch.topk over V = 49,152.
    """
    n, width = rows.shape
    if width % BLOCK or k * BLOCK >= width:
        return tuple(rows.topk(k))
    blocks = rows.view(n, width // BLOCK, BLOCK)
    best = blocks.amax(dim=-1).topk(k).indices
    candidates = blocks.gather(1, best[:, :, None].expand(n, k, BLOCK)).view(n, k * BLOCK)
    values, at = candidates.topk(k)
    return values, best.gather(1, at // BLOCK) * BLOCK + at % BLOCK


def target_probs(
    logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities [n, V] float32 of logits [n, V] float32; arguments as in `ddviz.tree.target_probs`."""
    probs = torch.softmax(logits / temperature, dim=-1)
    if 0 < top_k < probs.shape[-1]:
        probs = _keep(probs, probs.topk(top_k).values[:, -1:])
    if top_p < 1:
        falling = probs.sort(dim=-1, descending=True).values
        short = (falling.cumsum(dim=-1) < top_p).sum(dim=-1, keepdim=True)
        probs = _keep(probs, falling.gather(-1, short.clamp_(max=probs.shape[-1] - 1)))
    return probs


def _keep(probs: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    kept = probs.masked_fill(probs < least, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)
