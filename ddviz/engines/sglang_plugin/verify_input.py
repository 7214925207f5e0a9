"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: what the target's forward is given.

In:  TreeBatch and the mask of the step.
Out: a SpecInput that SGLang's attention backend and CUDA graph runner read.
Not here: the forward itself (worker.py), acceptance (acceptance.py).
"""

from dataclasses import dataclass

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

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
