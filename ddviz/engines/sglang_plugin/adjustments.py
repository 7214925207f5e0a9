"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: what requests ask to be changed in the logits.

In:  the target's logits [bs*T, V] of one step, TreeBatch, the batch with its sampling parameters.
Out: the same logits, changed at every node, in autoregression's order: penalties, grammar, bias, processors.
Not here: the arithmetic of penalties (penalties.py), temperature, top-k and top-p (acceptance.py).
"""

from collections.abc import Callable

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask
from sglang.srt.utils.async_probe import sanitize_nan_logits

from ddviz.engines.sglang_plugin.batch import TreeBatch
from ddviz.engines.sglang_plugin.penalties import Penalties, asks


def may_adjust(batch: ScheduleBatch) -> bool:
    """False: `adjust_logits` will leave the logits of this step as they are."""
    info: SamplingBatchInfo = batch.sampling_info
    return (
        any(asks(req.sampling_params) for req in batch.reqs)
        or batch.has_grammar
        or info.logit_bias is not None
        or info.has_custom_logit_processor
        or envs.SGLANG_SANITIZE_NAN_LOGITS.get()
    )


def grammar_tree_of(batch: ScheduleBatch, tree: TreeBatch) -> GrammarTree | None:
    """Begins to copy the tree to the host, where grammars walk it; None where no request has one."""
    if not batch.has_grammar:
        return None
    return GrammarTree.from_device(tree.next_token, tree.next_sibling, tree.tokens)


def adjust_logits(
    logits: torch.Tensor,
    batch: ScheduleBatch,
    tree: TreeBatch,
    penalties: Penalties,
    max_path_len: int,
    grammar_tree: GrammarTree | None,
    grammar_barrier: Callable[[], None] | None,
) -> bool:
    """Change logits [bs*T, V] in place. True: something was changed.

    grammar_tree     what `grammar_tree_of` gave before the forward
    grammar_barrier  SGLang's: returns once the grammars have taken the last step's tokens
    """
    info: SamplingBatchInfo = batch.sampling_info
    changed = penalties.adjust(batch.reqs, batch.req_pool_indices, batch.seq_lens, tree, logits, max_path_len)
    if grammar_tree is not None:
        grammar_mask = build_grammar_vocab_mask(
            reqs=batch.reqs,
            tree=grammar_tree,
            sampling_info=info,
            device=logits.device,
            barrier=grammar_barrier,
        )
        if grammar_mask is not None:
            grammar_mask.apply(logits)
            changed = True
    if info.logit_bias is not None:
        logits.add_(info.logit_bias.repeat_interleave(tree.width, dim=0))
        changed = True
    if info.has_custom_logit_processor:
        apply_custom_logit_processor(logits, info, num_tokens_in_batch=tree.width)
        changed = True
    sanitize_nan_logits(logits, "DDTREE verify")
    return changed
