"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: the distribution that acceptance samples from.

In:  the target's logits, one row per node, and the request's temperature, top_k, top_p.
Out: float32 probabilities: softmax(logits / temperature), then top-k renormalised, then top-p renormalised.
Not here: acceptance (accept.py).

The order is that of SGLang's verify path (top_k_renorm_prob, then top_p_renorm_prob). Its autoregressive
sampler applies the two jointly: the distributions differ where both are on.
"""

import numpy as np
from numpy.typing import NDArray


@np.errstate(invalid="ignore")  # a row that holds NaN stays NaN, without a warning
def target_probs(
    logits: NDArray[np.float32], temperature: float, top_k: int = 0, top_p: float = 1.0
) -> NDArray[np.float32]:
    """Probabilities [..., V] of logits [..., V] (float32), each row summing to 1 up to float32 rounding.

    temperature  > 0 (a greedy request has no use for probabilities: see `accept.is_greedy`)
    top_k        keep tokens at least as likely as the k-th; 0 or >= V = off. Ties at the k-th are all kept
    top_p        in (0, 1]; keep the fewest most likely tokens whose mass reaches top_p, and ties; 1 = off

    Raises ValueError for values outside these ranges. A row that holds NaN gives NaN.
    """
    if not temperature > 0:
        raise ValueError(f"{temperature = }, must be > 0")
    if top_k < 0:
        raise ValueError(f"{top_k = }, must be >= 0 (0 = off)")
    if not 0 < top_p <= 1:
        raise ValueError(f"{top_p = }, must be in (0, 1]")
    scaled = np.asarray(logits, np.float32) / np.float32(temperature)
    probs: NDArray[np.float32] = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    if 0 < top_k < probs.shape[-1]:
        kth = np.partition(probs, -top_k, axis=-1)[..., -top_k, None]
        probs = _keep(probs, kth)
    if top_p < 1:
        falling = -np.sort(-probs, axis=-1)
        mass = np.cumsum(falling, axis=-1, dtype=np.float32)
        last = np.minimum((mass < np.float32(top_p)).sum(axis=-1, keepdims=True), probs.shape[-1] - 1)
        probs = _keep(probs, np.take_along_axis(falling, last, axis=-1))
    return probs


def _keep(probs: NDArray[np.float32], least: NDArray[np.float32]) -> NDArray[np.float32]:
    """Zero what is below `least` (one value a row) and renormalise."""
    kept: NDArray[np.float32] = np.where(probs >= least, probs, np.float32(0))
    kept /= kept.sum(axis=-1, keepdims=True)
    return kept
