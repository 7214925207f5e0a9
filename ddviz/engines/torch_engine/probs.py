"""Stage 4 of 5, VERIFY: tree/target_probs.py in torch, where the logits are. A test holds the two equal."""

import torch


def target_probs(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
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
