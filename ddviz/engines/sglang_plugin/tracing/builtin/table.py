"""Every hook of tracing, with the arguments that it reads; which of them fit the SGLang that is installed.

In:  SGLang, of any version.
Out: hooks registered; what does not fit is named, and the rest does its work.
Not here: what a hook does (the files beside), the hooks that DDTREE itself needs (../../hooks.py).
"""

import inspect
import logging
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

from ddviz.engines.sglang_plugin.tracing.builtin import dflash, eagle, kernels, start, target

logger = logging.getLogger(__name__)


class Hook(NamedTuple):
    function: Callable[..., Any]
    reads: tuple[str, ...]  # parameters that the hooked function must have


_SPECULATIVE = "sglang.srt.speculative"
_GRAPH = f"{_SPECULATIVE}.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner"
_TREE = ("predicts", "accept_index", "accept_token_num", "candidates")

HOOKS: dict[str, Hook] = {
    "sglang.srt.managers.scheduler.Scheduler.init_model_worker": Hook(start.note_workers, ()),
    "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": Hook(
        target.note_verified, ("batch", "forward_batch", "is_verify")
    ),
    "sgl_kernel.speculative.verify_tree_greedy": Hook(kernels.note_accepted, (*_TREE, "target_predict")),
    "sgl_kernel.speculative.tree_speculative_sampling_target_only": Hook(
        kernels.note_accepted, (*_TREE, "uniform_samples", "target_probs", "draft_probs")
    ),
    f"{_SPECULATIVE}.eagle_utils.organize_draft_results": Hook(eagle.note_scores, ("score_list",)),
    f"{_GRAPH}.capture_one_shape": Hook(eagle.note_capture, ("size",)),
    f"{_GRAPH}.execute": Hook(eagle.note_replay, ()),
    f"{_SPECULATIVE}.spec_utils.move_accept_tokens_to_target_kvcache": Hook(
        eagle.note_move, ("batch", "accept_index", "num_correct_drafts", "token_to_kv_pool_allocator")
    ),
    "sglang.kernels.ops.speculative.dflash._compute_dflash_accept_bonus_triton_unchecked": Hook(
        dflash.note_chain, ("candidates", "target_top1", "accept_lens_out", "out_tokens_out")
    ),
    f"{_SPECULATIVE}.dflash_utils.compute_dflash_correct_drafts_and_bonus": Hook(
        dflash.note_chain_eager, ("candidates", "target_predict")
    ),
    f"{_SPECULATIVE}.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc": Hook(
        dflash.note_appended, ("positions", "commit_lens")
    ),
}
_registered: set[str] = set()


def register_tracing(results: dict[str, Hook]) -> list[str]:
    """Register the hooks that fit this SGLang; returns what does not, a sentence each, and logs it.

    results  the two hooks that tell what became of a step
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    unfit = []
    for name, hook in {**results, **HOOKS}.items():
        if name in _registered:
            continue
        reason = misfit(name, hook)
        if reason is None:
            HookRegistry.register(name, hook.function, HookType.AROUND)
            _registered.add(name)
        else:
            unfit.append(f"{name}: {reason}")
    for sentence in unfit:
        logger.warning("ddviz: a hook of the tracer does not fit this SGLang: %s", sentence)
    return unfit


def misfit(name: str, hook: Hook) -> str | None:
    """Why a hook cannot be used here; None = it can."""
    try:
        found = pkgutil.resolve_name(name)
        parameters = inspect.signature(found).parameters
    except Exception as error:  # whatever an SGLang of another version does while it is imported
        return f"{type(error).__name__}: {error}"
    missing = [parameter for parameter in hook.reads if parameter not in parameters]
    return f"it has no parameter {', '.join(missing)}" if missing else None


def warn_of_missing() -> None:
    """Name the hooks that SGLang did not apply, though they fit: its own log says why."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    for name in sorted(_registered - HookRegistry._patched):
        logger.warning("ddviz: a hook of the tracer was not applied: %s", name)
