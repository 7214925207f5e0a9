"""What is read from a step's buffers, on the device, for the rows that are traced.

In:  the tensors that the stages of a step produced and used.
Out: small tensors, one row a traced request, that a later step does not touch.
Not here: any second computation of what a stage decided. Statistics that the rule does not need (entropy,
logsumexp, top lists) come from the same logits that it used.
"""

import torch
import triton
import triton.language as tl

from ddviz.engines.base import TARGET_TOP
from ddviz.engines.sglang_plugin.batch import TreeBatch
from ddviz.engines.sglang_plugin.tree_kernels import first_mask_cell


def tree_arrays(tree: TreeBatch, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tree and the retrieve arrays [n, T] of the traced rows, as the kernels got them."""
    names = ("tokens", "parents", "ranks", "scores", "retrieve_index", "next_token", "next_sibling")
    arrays = {name: getattr(tree, name)[rows] for name in (*names, "positions", "slots")}
    return {**arrays, "counts": tree.counts[rows]}


def mask_cells(mask: torch.Tensor, seq_lens: torch.Tensor, width: int, rows: torch.Tensor) -> torch.Tensor:
    """The T x T cells [n, T, T] uint8 that the attention kernel reads, out of its own flat buffer."""
    cells = torch.empty((len(rows), width, width), dtype=torch.uint8, device=mask.device)
    _gather_mask[(len(rows), width)](
        mask,
        seq_lens,
        rows,
        cells,
        T=width,
        LANES=triton.next_power_of_2(width),
        BS_LANES=triton.next_power_of_2(len(seq_lens)),
        num_warps=1,
    )
    return cells


def raw_statistics(logits: torch.Tensor, tree: TreeBatch, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of the target's logits [bs*T, V] before anything changes them: per node top m, entropy, logsumexp, and
    the probability of the node's token in its parent's row.
    """
    bs, width = tree.tokens.shape
    chosen = logits.view(bs, width, -1)[rows].float()
    top, ids = chosen.topk(min(TARGET_TOP, chosen.shape[-1]), dim=-1)
    logsumexp = torch.logsumexp(chosen, dim=-1, keepdim=True)
    probs = torch.exp(chosen - logsumexp)
    entropy = logsumexp.squeeze(-1) - (probs * chosen).sum(dim=-1)
    nonfinite = chosen.shape[-1] - torch.isfinite(chosen).sum(dim=-1)
    return {
        "raw_top_ids": ids.int(),
        "raw_top_probs": torch.exp(top - logsumexp),
        "raw_entropy": entropy,
        "raw_logsumexp": logsumexp.squeeze(-1),
        "raw_argmax": chosen.argmax(dim=-1).int(),
        "raw_margin": top[..., 0] - top[..., 1],
        "raw_node_probs": node_probs(probs, tree, rows),
        "nonfinite": nonfinite.int(),
    }


def filtered_statistics(probs: torch.Tensor, tree: TreeBatch, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of the probabilities [n, T, V] that acceptance used, already those of the traced rows."""
    top, ids = probs.topk(min(TARGET_TOP, probs.shape[-1]), dim=-1)
    return {
        "filtered_top_ids": ids.int(),
        "filtered_top_probs": top,
        "filtered_node_probs": node_probs(probs, tree, rows),
    }


def node_probs(probs: torch.Tensor, tree: TreeBatch, rows: torch.Tensor) -> torch.Tensor:
    """Probability [n, T] of each node's token in its parent's row; that of root and pads means nothing."""
    parents = tree.parents[rows].clamp(min=0).long()
    return (
        probs.gather(1, parents.unsqueeze(-1).expand(-1, -1, probs.shape[-1]))
        .gather(2, tree.tokens[rows].unsqueeze(-1))
        .squeeze(-1)
    )


def bonus_draw(
    probs: torch.Tensor, rejected: torch.Tensor, last: torch.Tensor, bonus: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What the bonus was drawn from [n]: residual mass, mass below the bonus, mass of the bonus.

    probs, rejected  [n, T, V] the kernel's target_probs, and its scratch with the rejected children's mass
    last             [n] int64, node at the end of the accepted path
    bonus            [n] int64
    """
    at = last.view(-1, 1, 1).expand(-1, 1, probs.shape[-1])
    residual = (probs.gather(1, at) - rejected.gather(1, at)).clamp(min=0).squeeze(1).double()
    cdf = residual.cumsum(dim=-1)
    own = residual.gather(1, bonus.unsqueeze(1)).squeeze(1)
    upto = cdf.gather(1, bonus.unsqueeze(1)).squeeze(1)
    return {
        "residual_sum": cdf[:, -1].float(),
        "bonus_cdf": (upto - own).float(),
        "bonus_prob": own.float(),
    }


@triton.jit
def _gather_mask(
    mask,
    seq_lens,
    rows,
    cells_out,
    T: tl.constexpr,  # noqa: N803 - Triton's constants are capitals
    LANES: tl.constexpr,  # noqa: N803
    BS_LANES: tl.constexpr,  # noqa: N803
):
    traced = tl.program_id(0)
    node = tl.program_id(1)
    row = tl.load(rows + traced)
    lane = tl.arange(0, LANES)
    first = first_mask_cell(seq_lens, row, node, T, BS_LANES) + tl.load(seq_lens + row)
    cell = tl.load(mask + first + lane, mask=lane < T, other=0)
    tl.store(cells_out + (traced * T + node) * T + lane, cell, mask=lane < T)
