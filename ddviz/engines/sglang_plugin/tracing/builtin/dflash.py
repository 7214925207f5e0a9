"""What DFLASH does without the tree kernels: a greedy chain is accepted by a kernel of its own, and the
accepted features go into the drafter's KV.

In:  the arguments and answers of those functions.
Out: the step under way learns of them. A sampled chain goes through a tree kernel (kernels.py).
Not here: DDTREE, whose worker is DFLASH's too, and has a tracer of its own: no step is under way here then.
"""

import inspect
from collections.abc import Callable
from typing import Any

from ddviz.engines.sglang_plugin.tracing.builtin.step import UnderWay


def note_chain(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`_compute_dflash_accept_bonus_triton_unchecked`, whose answers are arguments: static buffers."""
    answer = original(*args, **kwargs)
    step = UnderWay.step
    if step is not None:
        with step.tracer.guarded():
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            path = given["out_tokens_out"]
            step.followed_chain(given["candidates"], given["target_top1"], given["accept_lens_out"], path)
    return answer


def note_chain_eager(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`compute_dflash_correct_drafts_and_bonus`, which stands in where that kernel can't run."""
    answer = original(*args, **kwargs)
    step = UnderWay.step
    if step is not None:
        with step.tracer.guarded():
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            step.followed_chain(given["candidates"], given["target_predict"], answer[0], None)
    return answer


def note_appended(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """`DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc`; in a decoding step it has commit_lens."""
    if UnderWay.step is not None and kwargs.get("commit_lens") is not None:
        UnderWay.step.appended(kwargs["positions"])
    return original(worker, *args, **kwargs)
