"""Before a server serves: does the target's forward see a tree, and does its CUDA graph see the same one?

A graph captured without the mask verifies a tree as a causal chain. The text still looks like text: nodes
see their elder siblings and acceptance falls. So one synthetic branching tree is verified three times, and a
server whose graph does not agree with its eager forward does not start.

    eager, tree mask    what is right
    eager, chain mask   what a lost mask would give
    graph, tree mask    must be near the first and far from the second
"""

import logging
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from ddviz.engines.sglang_plugin.batch import TreeBatch
from ddviz.engines.sglang_plugin.tree_kernels import build_trees, compile_trees
from ddviz.engines.sglang_plugin.verify_input import DDTreeVerifyInput

PREFIX_LEN = 8
NEAR = 0.25  # of the distance between tree and chain; numerics of graph and eager differ by far less

logger = logging.getLogger(__name__)


def check_graph_sees_the_tree(worker: Any) -> None:
    """RuntimeError where the target's verify graph does not see the tree's mask."""
    with torch.inference_mode():
        distances = _distances(worker)
    if distances is None:
        return
    chain, graph = distances
    if chain == 0:
        logger.warning("DDTREE self-check says nothing: this target's logits do not depend on the mask")
    elif graph is None:
        logger.info("DDTREE self-check: eager verify sees the tree; a chain's logits differ by %.3g", chain)
    elif not graph <= NEAR * chain:  # NaN fails too
        raise RuntimeError(
            f"DDTREE self-check failed: logits of CUDA graph and eager forward differ by {graph:.3g}, "
            f"where losing the mask altogether would give {chain:.3g}; start with --disable-cuda-graph, and "
            "please report it"
        )
    else:
        logger.info("DDTREE self-check: graph and eager differ by %.3g, tree and chain by %.3g", graph, chain)


def _distances(worker: Any) -> tuple[float, float | None] | None:
    """Largest logit difference from eager-with-tree-mask of (eager with chain mask, graph or None)."""
    runner = worker.model_runner
    rows = runner.req_to_token_pool.req_to_token
    width = worker.tree_width
    if runner.token_to_kv_pool_allocator.size < PREFIX_LEN + width:
        logger.warning("DDTREE self-check left out: the KV pool has fewer than %d slots", PREFIX_LEN + width)
        return None
    kept = rows[0, : PREFIX_LEN + width].clone()
    try:
        rows[0, : PREFIX_LEN + width] = torch.arange(1, PREFIX_LEN + width + 1, device=rows.device)
        tree, mask = _synthetic_tree(worker)
        graphs, runner.decode_cuda_graph_runner = runner.decode_cuda_graph_runner, None
        try:
            eager = _logits(runner, tree, mask)
            whole = torch.ones_like(mask)  # Triton's extend kernel is causal by itself: all ones is a chain
            chain = _logits(runner, tree, whole)
        finally:
            runner.decode_cuda_graph_runner = graphs
        graph = None
        if graphs is not None:
            mask = _compiled_mask(worker, tree)  # anew: the chain run may have used the same buffer
            graph = _logits(runner, tree, mask)
    finally:
        rows[0, : PREFIX_LEN + width] = kept
    count = int(tree.counts[0])
    to_chain = (chain - eager)[:count].abs().max().item()
    return to_chain, None if graph is None else (graph - eager)[:count].abs().max().item()


def _synthetic_tree(worker: Any) -> tuple[TreeBatch, torch.Tensor]:
    """Every node has two children, so that there are elder siblings which a node must not see."""
    device, width = worker.device, worker.tree_width
    depths = worker.block_size - 1
    logprobs = torch.tensor([[-1.0, -1.25]], device=device).expand(1, depths, 2).contiguous()
    ids = torch.arange(1, 1 + 2 * depths, device=device).view(1, depths, 2)
    tree = TreeBatch.empty(1, width, device)
    limits = torch.tensor([[width - 1], [2]], dtype=torch.int32, device=device)
    build_trees(tree, logprobs, ids, torch.zeros(1, dtype=torch.int64, device=device), limits[0], limits[1])
    return tree, _compiled_mask(worker, tree)


def _compiled_mask(worker: Any, tree: TreeBatch) -> torch.Tensor:
    rows = worker.model_runner.req_to_token_pool.req_to_token
    mask = worker.mask_buffer(1, PREFIX_LEN + worker.tree_width)
    compile_trees(tree, _prefix_lens(rows.device), _row_zero(rows.device), rows, mask, whole_rows=True)
    return mask


def _logits(runner: Any, tree: TreeBatch, mask: torch.Tensor) -> torch.Tensor:
    device = tree.tokens.device
    total = PREFIX_LEN + tree.width
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=1,
        input_ids=tree.tokens.view(-1),
        req_pool_indices=_row_zero(device),
        seq_lens=_prefix_lens(device),
        out_cache_loc=tree.slots.view(-1),
        seq_lens_sum=total,
        seq_lens_cpu=torch.tensor([total]),
        positions=tree.positions.view(-1),
        spec_algorithm=runner.spec_algorithm,
        spec_info=DDTreeVerifyInput.of(tree, mask),
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )
    return runner.forward(forward_batch).logits_output.next_token_logits.float().clone()


def _prefix_lens(device: torch.device) -> torch.Tensor:
    return torch.tensor([PREFIX_LEN], device=device)


def _row_zero(device: torch.device) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64, device=device)
