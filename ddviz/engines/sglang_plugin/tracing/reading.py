"""What is read from a step's buffers, on the device, for the rows that are traced.

In:  the tensors that the stages of a step produced and used.
Out: small tensors, one row a traced request, that a later step does not touch.
Not here: any second computation of what a stage decided. Statistics that the rule does not need (entropy,
logsumexp, top lists) come from the same logits that it used.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl

from ddviz.engines.base import TARGET_TOP
from ddviz.engines.sglang_plugin.tracing.read_rows import RowFacts, read_rows
from ddviz.engines.sglang_plugin.tree_kernels import first_mask_cell


class Linked(Protocol):
    """Nodes and their parents, whole batch: a TreeBatch, or what stands for one (builtin/step.py)."""

    @property
    def tokens(self) -> torch.Tensor: ...  # [bs, T] int64
    @property
    def parents(self) -> torch.Tensor: ...  # [bs, T], -1 = none
    @property
    def width(self) -> int: ...


def mask_cells(mask: torch.Tensor, seq_lens: torch.Tensor, width: int, rows: torch.Tensor) -> torch.Tensor:
    """The T x T cells [n, T, T] uint8 that the attention kernel reads, out of its own flat bytes or bools."""
    cells = torch.empty((len(rows), width, width), dtype=torch.uint8, device=mask.device)
    _gather_mask[(len(rows), width)](
        mask.view(torch.uint8),
        mask.numel(),
        seq_lens,
        rows,
        cells,
        T=width,
        LANES=triton.next_power_of_2(width),
        BS_LANES=triton.next_power_of_2(len(seq_lens)),
        num_warps=1,
    )
    return cells


def row_statistics(
    logits: torch.Tensor, width: int, rows: torch.Tensor
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Of the target's logits [bs*T, V] before anything changes them: per node top m, entropy, logsumexp; and
    the probabilities [n, T, V].
    """
    chosen = logits.view(-1, width, logits.shape[-1])[rows].float()
    facts = facts_of(chosen)
    statistics = raw_statistics(facts)
    return statistics, torch.exp(chosen - facts.logsumexp.unsqueeze(-1))


def facts_of(values: torch.Tensor) -> RowFacts:
    """Of every row of values [n, T, V]; [n, T, ...] each."""
    n, width, vocabulary = values.shape
    facts = RowFacts.empty(n * width, min(TARGET_TOP, vocabulary), values.device)
    read_rows(values.view(n * width, vocabulary), facts)
    return facts.view(n, width)


def raw_statistics(facts: RowFacts) -> dict[str, torch.Tensor]:
    """By the names of a trace, [n, T, ...] each."""
    return {
        "raw_top_ids": facts.top_ids,
        "raw_top_probs": torch.exp(facts.top_values - facts.logsumexp.unsqueeze(-1)),
        "raw_entropy": facts.entropy,
        "raw_logsumexp": facts.logsumexp,
        "raw_argmax": facts.top_ids[..., 0],
        "raw_margin": facts.top_values[..., 0] - facts.top_values[..., 1],
        "nonfinite": facts.nonfinite,
    }


def filtered_statistics(probs: torch.Tensor, tree: Linked, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of the probabilities [n, T, V] that acceptance used, already those of the traced rows."""
    facts = facts_of(probs.contiguous())
    return {
        "filtered_top_ids": facts.top_ids,
        "filtered_top_probs": facts.top_values,
        "filtered_node_probs": node_probs(probs, tree, rows),
    }


def node_probs(probs: torch.Tensor, tree: Linked, rows: torch.Tensor) -> torch.Tensor:
    """Probability [n, T] of each node's token in its parent's row; that of root and pads means nothing."""
    return of_parents(token_probs(probs, tree.tokens[rows]), tree.parents[rows])


def token_probs(probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[n, T, T]: the probability in row i of the token of node j. For links that are not known yet."""
    width, vocabulary = probs.shape[1:]
    wanted = tokens.long().clamp(0, vocabulary - 1).unsqueeze(1).expand(-1, width, -1)
    return probs.gather(2, wanted)


def of_parents(pairs: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """[n, T]: of `token_probs`, each node's in its parent's row."""
    return pairs.gather(1, parents.long().clamp(min=0).unsqueeze(1)).squeeze(1)


def parents_of(next_token: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """Parents [n, T] int64 that the links [n, T] say; -1 for the root and for nodes that no link reaches.

    A node's parent is that of its leftmost sibling. The way there halves with every round, so that no host
    sync and few launches are needed; links that run in a circle, or out of the tree, do no harm.
    """
    rows, width = next_token.shape
    nodes = torch.arange(width, device=next_token.device).expand(rows, -1)
    parent_of_first = _inverse(next_token, nodes)
    left = _inverse(next_sibling, nodes)
    leftmost = torch.where(left >= 0, left, nodes)
    for _ in range(width.bit_length()):
        leftmost = leftmost.gather(1, leftmost)
    return parent_of_first.gather(1, leftmost)


def _inverse(links: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """[n, T] the node that links to each node, -1 = none."""
    width = links.shape[1]
    known = (links >= 0) & (links < width)
    found = torch.full((len(links), width + 1), -1, dtype=torch.int64, device=links.device)
    found.scatter_(1, torch.where(known, links.long(), width), nodes)  # what links nowhere: one column more
    return found[:, :width]


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


@triton.jit(do_not_specialize=["size"])
def _gather_mask(
    mask,
    size,  # of the mask, beyond which nothing is read
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
    cell = tl.load(mask + first + lane, mask=(lane < T) & (first + lane < size), other=0)
    tl.store(cells_out + (traced * T + node) * T + lane, cell, mask=lane < T)
