"""The target's verify forward, which every algorithm runs through one function.

In:  the ForwardBatch (or the ScheduleBatch that it is made from) and the logits that came out.
Out: the step under way learns slots, positions, the mask and statistics of the raw logits.
Not here: what becomes of the logits (kernels.py, dflash.py).
"""

from collections.abc import Callable
from typing import Any

import torch

from ddviz.engines.sglang_plugin.tracing.builtin.step import UnderWay


def note_verified(
    original: Callable[..., Any],
    worker: Any,
    batch: Any,
    forward_batch: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """`TpModelWorker.forward_batch_generation`: prefill, decode and verify; only the last is looked at."""
    step = UnderWay.step
    if step is None or not kwargs.get("is_verify", args[1] if len(args) > 1 else False):
        return original(worker, batch, forward_batch, *args, **kwargs)
    step.passed("draft")
    given = batch if forward_batch is None else forward_batch
    tokens, slots, spec = given.input_ids, given.out_cache_loc, given.spec_info
    out = original(worker, batch, forward_batch, *args, **kwargs)
    with step.tracer.guarded():
        step.verified(tokens, slots, getattr(spec, "positions", None), out.logits_output.next_token_logits)
        mask = mask_read(worker.model_runner, spec, step.batch_size, bool(out.can_run_cuda_graph))
        if mask is not None:
            step.masked(mask)
    return out


def mask_read(model_runner: Any, spec_info: Any, bs: int, ran_graph: bool) -> torch.Tensor | None:
    """The flat mask [sum of T * (committed length + T)] that attention read; None where it read none.

    A graph reads the attention backend's own buffer, an eager forward what it is given. Masks of another
    layout (T x T alone, packed bits) are not recorded.
    """
    given = getattr(spec_info, "custom_mask", None)
    owned = getattr(model_runner.attn_backend, "verify_mask", None)
    if given is None:
        return None
    if owned is None:
        return given
    if not owned.is_read or owned.mode.name != "FULL_MASK":
        return None
    return owned.buffer if ran_graph and owned.fits(bs) else given
