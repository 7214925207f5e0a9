"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: what the target's forward is given.

In:  TreeBatch and the mask of the step.
Out: a SpecInput that SGLang's attention backend and CUDA graph runner read.
Not here: the forward itself (worker.py), acceptance (acceptance.py).
"""

from dataclasses import dataclass

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

from ddviz.engines.sglang_plugin.batch import TreeBatch


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):
    """A DFlash verify whose rows are the nodes of a tree: T = draft_token_num a request, with a mask.

    It stays a DFLASH_VERIFY for SGLang's dispatch. While a CUDA graph is captured there is no tree.
    """

    tree: TreeBatch | None = None

    @classmethod
    def of(cls, tree: TreeBatch, mask: torch.Tensor) -> "DDTreeVerifyInput":
        return cls(
            draft_token=tree.tokens.view(-1),
            positions=tree.positions.view(-1),
            draft_token_num=tree.width,
            custom_mask=mask,
            tree=tree,
        )


@dataclass
class DDTreeDraftInput(DFlashDraftInputV2):
    """What one step hands to the next: the bonus (its root) and the committed lengths."""

    @classmethod
    def of(cls, bonus_tokens: torch.Tensor, new_seq_lens: torch.Tensor) -> "DDTreeDraftInput":
        bs, device = new_seq_lens.numel(), bonus_tokens.device
        return cls(
            topk_p=torch.empty((bs, 0), dtype=torch.float32, device=device),
            topk_index=torch.empty((bs, 0), dtype=torch.int64, device=device),
            bonus_tokens=bonus_tokens.to(torch.int64),
            new_seq_lens=new_seq_lens.to(torch.int64),
            hidden_states=torch.empty((bs, 0), dtype=torch.float16, device=device),
        )
