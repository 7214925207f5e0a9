"""Stage 1 of 5, DRAFT -> build -> compile -> verify -> commit: what the drafter thinks comes next.

In:  the drafter's hidden states of a block [bs * B, H]; the target's head, whose vocabulary may be sharded.
Out: per draft position the K most likely tokens with their log-probabilities, [bs, B-1, K].
Not here: the tree (tree_kernels.py).

The log-probabilities are normalised over the whole vocabulary in float32, at temperature 1. Every tensor
parallel rank returns the same lists, so that every rank builds the same tree: a rank sends its K best and one
number, never its logits.
"""

from typing import Any

import torch


class DraftHead:
    """The target's head over draft positions. Called inside the draft's CUDA graph, and eagerly."""

    def __init__(self, lm_head: Any, block_size: int, k: int, tp_group: Any) -> None:
        """lm_head: the target's ParallelLMHead or Linear, this rank's shard of it."""
        self._weight, self._vocab_start = _vocabulary_shard(lm_head, tp_group.world_size)
        self.block_size = block_size
        self.k = min(k, self._weight.shape[0] * tp_group.world_size)
        self._tp_group = tp_group
        self.reserve(0)

    def reserve(self, max_bs: int) -> None:
        """Room for the lists of up to max_bs requests, at addresses that stay; before graphs are captured."""
        shape, device = (max_bs * (self.block_size - 1), self.k), self._weight.device
        self._logprobs = torch.empty(shape, dtype=torch.float32, device=device)
        self._ids = torch.empty(shape, dtype=torch.int64, device=device)

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None) -> None:
        """The tail of a draft, in its CUDA graph or not: leave the lists where `lists` finds them."""
        logprobs, ids = self.top_k(hidden_states)
        rows = logprobs.shape[0] * logprobs.shape[1]
        self._logprobs[:rows].copy_(logprobs.view(rows, self.k))
        self._ids[:rows].copy_(ids.view(rows, self.k))

    def lists(self, bs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and ids [bs, B-1, K] that the last draft left; the next one overwrites them."""
        rows = bs * (self.block_size - 1)
        shape = (bs, self.block_size - 1, self.k)
        return self._logprobs[:rows].view(shape), self._ids[:rows].view(shape)

    def top_k(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [bs, B-1, K] float32, falling, and token ids [bs, B-1, K] int64.

        hidden_states  [bs * B, H]; block position 0 is the root and predicts nothing
        """
        hidden = hidden_states.view(-1, self.block_size, hidden_states.shape[-1])[:, 1:]
        logits = (hidden.to(self._weight.dtype) @ self._weight.T).float()
        top, ids = torch.topk(logits, min(self.k, logits.shape[-1]), dim=-1)
        ids = ids + self._vocab_start
        normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
        if self._tp_group.world_size > 1:
            top, ids, normalizer = self._merge_ranks(top, ids, normalizer)
        return top - normalizer, ids

    def _merge_ranks(
        self, top: torch.Tensor, ids: torch.Tensor, normalizer: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        gathered_top = self._tp_group.all_gather(top.contiguous(), dim=-1)
        gathered_ids = self._tp_group.all_gather(ids.contiguous(), dim=-1)
        normalizers = self._tp_group.all_gather(normalizer.contiguous(), dim=-1)
        top, at = torch.topk(gathered_top, self.k, dim=-1)
        return top, gathered_ids.gather(-1, at), torch.logsumexp(normalizers, dim=-1, keepdim=True)


def _vocabulary_shard(lm_head: Any, tp_size: int) -> tuple[torch.Tensor, int]:
    """The rows of the head that hold this rank's tokens, and the first token's id."""
    weight = getattr(lm_head, "weight", None)
    if weight is None or not weight.is_floating_point():
        raise ValueError("DDTREE needs a target with an unquantised lm_head, which the drafter borrows")
    shard = getattr(lm_head, "shard_indices", None)
    if shard is None:
        if tp_size > 1:
            raise ValueError("DDTREE with tensor parallelism needs a target whose lm_head names its shard")
        return weight, 0
    if shard.num_added_elements:
        raise ValueError("DDTREE does not support a target with an added vocabulary (LoRA)")
    return weight[: shard.num_org_elements], shard.org_vocab_start_index
