"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: which path the target accepts.

In:  the target's logits [bs*T, V] of one step or their argmax, TreeBatch, what the requests ask for.
Out: AcceptedBatch filled in, the same contract from both derivations.
Not here: what changes the logits before (adjustments.py), the kernels themselves (sglang-kernel),
     their twins in numpy (ddviz/tree/accept.py).

A batch may mix greedy and sampled requests. A greedy row of a mixed batch is one-hot at its argmax, and its
coins are one half, so that it takes the path that it takes in a batch of greedy rows alone: a coin of 0 would
accept a child of probability 0.
"""

import torch
from sgl_kernel import tree_speculative_sampling_target_only, verify_tree_greedy
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative.eagle_utils import _seeded_verify_coins

from ddviz.engines.sglang_plugin.batch import AcceptedBatch, TreeBatch
from ddviz.engines.sglang_plugin.tracing.traced_step import NoStep

GREEDY_COIN = 0.5
PROBS_BYTES = 1 << 30  # target probabilities held at once; a larger batch is sampled in parts


def accept_greedy(out: AcceptedBatch, tree: TreeBatch, best: torch.Tensor) -> None:
    """Follow the child that equals the argmax until there is none; that argmax is the bonus.

    best  [bs, T] int64, the argmax of every node's logits
    """
    out.clear()
    verify_tree_greedy(
        predicts=out.predicts,
        accept_index=out.accept_index,
        accept_token_num=out.num_accepted,
        candidates=tree.tokens,
        retrive_index=tree.retrieve_index,
        retrive_next_token=tree.next_token,
        retrive_next_sibling=tree.next_sibling,
        target_predict=best,
    )


def accept_sampled(
    out: AcceptedBatch,
    tree: TreeBatch,
    logits: torch.Tensor,
    info: SamplingBatchInfo,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    trace: NoStep,
) -> None:
    """One coin a node against the running sum of its children, the bonus from what is left of the row.

    logits              [bs*T, V], adjusted
    info                temperature, top-k and top-p of every request
    coins, final_coins  [bs, T] and [bs], of `draw_coins`
    """
    out.clear()
    bs, width = tree.tokens.shape
    greedy = (info.top_ks == 1).view(bs, 1) if info.is_any_greedy else None
    if greedy is not None:
        coins = coins.masked_fill(greedy, GREEDY_COIN)
        final_coins = final_coins.masked_fill(greedy.view(bs), GREEDY_COIN)
    at_once = max(1, PROBS_BYTES // (width * logits.shape[-1] * 4))  # float32
    for start in range(0, bs, at_once):
        rows = slice(start, min(start + at_once, bs))
        probs = _target_probs(logits.view(bs, width, -1)[rows], info, rows, greedy)
        rejected = torch.zeros_like(probs)  # the kernel's scratch for the mass of rejected children
        tree_speculative_sampling_target_only(
            predicts=out.predicts,
            accept_index=out.accept_index[rows],
            accept_token_num=out.num_accepted[rows],
            candidates=tree.tokens[rows],
            retrive_index=tree.retrieve_index[rows],
            retrive_next_token=tree.next_token[rows],
            retrive_next_sibling=tree.next_sibling[rows],
            uniform_samples=coins[rows],
            uniform_samples_for_final_sampling=final_coins[rows],
            target_probs=probs,
            draft_probs=rejected,
            threshold_single=threshold_single,
            threshold_acc=threshold_acc,
            deterministic=True,
        )
        trace.sampled(rows, tree, probs, rejected, out, coins, final_coins)


def _target_probs(
    logits: torch.Tensor, info: SamplingBatchInfo, rows: slice, greedy: torch.Tensor | None
) -> torch.Tensor:
    """Probabilities [n, T, V] float32: temperature, then top-k renormalised, then top-p renormalised."""
    n, width, vocabulary = logits.shape
    probs = torch.softmax(logits / info.temperatures[rows].view(n, 1, 1), dim=-1).view(n * width, vocabulary)
    if info.need_top_k_sampling:
        probs = _renormalised("top_k", probs, info.top_ks[rows].repeat_interleave(width), 0)
    if info.need_top_p_sampling:
        probs = _renormalised("top_p", probs, info.top_ps[rows].repeat_interleave(width), 0.0)
    probs = probs.view(n, width, vocabulary)
    if greedy is not None:
        one_hot = torch.zeros_like(probs).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
        probs = torch.where(greedy[rows].view(n, 1, 1), one_hot, probs)
    return probs.contiguous()


def _renormalised(name: str, probs: torch.Tensor, limits: torch.Tensor, default: float) -> torch.Tensor:
    """sglang-kernel's compiled filter. Its Python wrapper prefers flashinfer's, for which the first sampled
    request of a server would wait a minute, while nvcc compiles it.
    """
    out = torch.empty_like(probs)
    getattr(torch.ops.sgl_kernel, f"{name}_renorm_probs").default(probs, out, limits, default)
    return out


def draw_coins(
    info: SamplingBatchInfo, seq_lens: torch.Tensor, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """One coin a node [bs, T], and one for the bonus [bs], in [0, 1).

    info      the requests' seeds, where inference is deterministic
    seq_lens  [bs] committed lengths, which seeded coins depend on
    """
    if info.sampling_seed is not None:
        return _seeded_verify_coins(
            sampling_seed=info.sampling_seed, seq_lens=seq_lens, draft_token_num=width, device=device
        )
    bs = seq_lens.shape[0]
    return torch.rand((bs, width), device=device), torch.rand((bs,), device=device)
