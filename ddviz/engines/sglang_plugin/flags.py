"""The flags of DDTREE, and what DDTREE refuses when a server starts.

In:  SGLang's ServerArgs class and one instance of it.
Out: two more fields of the class; an instance whose speculative fields fit DDTREE, or ValueError.
Not here: what a request may ask (requests.py).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ddviz.engines.base import MAX_BUDGET

MAX_BLOCK = 256  # the tree kernels keep a node's depth in a byte
DEFAULT_BUDGET = 16
DEFAULT_TOPK_CAP = 4
DEFAULT_MAX_RUNNING_REQUESTS = 16  # a tree step holds bs*T rows of the vocabulary

_FLAGS = {
    "speculative_ddtree_budget": (
        DEFAULT_BUDGET,
        "DDTREE: nodes of a draft tree beside its root, and the most that a request may ask for.",
    ),
    "speculative_ddtree_topk_cap": (
        DEFAULT_TOPK_CAP,
        "DDTREE: children that a node of a draft tree may have, and the most that a request may ask for. "
        "0 = no cap of its own.",
    ),
}


def add_flags(server_args_class: type) -> None:
    """Add the flags to SGLang's ServerArgs, as if it had declared them.

    In place, because Engine, the command line and the config bags hold the class itself. A flag that is
    there already, SGLang's own or from an earlier call, is left alone.
    """
    from sglang.srt.arg_groups import arg_utils

    missing = [name for name in _FLAGS if name not in server_args_class.__dataclass_fields__]
    for name in missing:
        default, help_text = _FLAGS[name]
        annotation = arg_utils.A[int, help_text, arg_utils.NS("spec")]
        field = dataclasses.field(default=default)
        field.name, field.type, field.kw_only = name, annotation, False
        field._field_type = dataclasses._FIELD  # what @dataclass would have set
        server_args_class.__annotations__[name] = annotation
        server_args_class.__dataclass_fields__[name] = field
        setattr(server_args_class, name, default)
    if missing:
        server_args_class.__init__ = _with_fields(server_args_class.__init__, missing)
        arg_utils.namespace_of.cache_clear()
        arg_utils.resolvable_fields.cache_clear()


def resolve_server_args(server_args: Any) -> None:
    """Fit a ServerArgs to DDTREE, in place.

    Raises ValueError with one sentence for every setting that DDTREE does not support.
    """
    refusals = list(_refusals(server_args))
    if refusals:
        raise ValueError("; ".join(refusals))
    block_size = _block_size(server_args)
    server_args.speculative_num_steps = 1
    server_args.speculative_eagle_topk = 1
    server_args.speculative_dflash_block_size = block_size
    server_args.speculative_num_draft_tokens = max(block_size, server_args.speculative_ddtree_budget + 1)
    if server_args.speculative_draft_attention_backend is None:
        server_args.speculative_draft_attention_backend = "triton"
    if server_args.max_running_requests is None:
        server_args.max_running_requests = DEFAULT_MAX_RUNNING_REQUESTS
    server_args.enable_mixed_chunk = False


def _with_fields(init: Callable[..., None], names: list[str]) -> Callable[..., None]:
    """A ServerArgs.__init__ that takes the fields `names` too, set before SGLang validates the others."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        for name in names:
            if name in kwargs:
                object.__setattr__(self, name, kwargs.pop(name))
        init(self, *args, **kwargs)

    __init__.__wrapped__ = init  # type: ignore[attr-defined]
    return __init__


def _refusals(args: Any) -> Iterator[str]:
    from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view

    resolved = resolved_view(args)
    budget, cap = args.speculative_ddtree_budget, args.speculative_ddtree_topk_cap
    if not _is_whole(budget) or not 1 <= budget <= MAX_BUDGET:
        yield f"--speculative-ddtree-budget is {budget!r}, must be an integer in [1, {MAX_BUDGET}]"
    if not _is_whole(cap) or cap < 0:
        yield f"--speculative-ddtree-topk-cap is {cap!r}, must be an integer >= 0 (0 = no cap)"
    if args.speculative_draft_model_path is None:
        yield "DDTREE needs --speculative-draft-model-path with a DFlash drafter"
    if not args.device.startswith("cuda"):
        yield f"DDTREE runs on CUDA devices only, got --device {args.device}"
    backends = sorted({str(b) for b in attention_backends_of(resolved)})
    if backends != ["triton"]:
        yield (
            "DDTREE needs --attention-backend triton, the one that reads a tree's mask, "
            f"got {', '.join(backends)}"
        )
    draft_backend = args.speculative_draft_attention_backend
    if draft_backend not in (None, "triton"):
        yield f"DDTREE needs --speculative-draft-attention-backend triton, got {draft_backend}"
    if resolved.page_size not in (None, 1):
        yield f"DDTREE needs --page-size 1, got {resolved.page_size}"
    for wanted, actual, flag in (
        (1, args.pp_size, "--pp-size"),
        (1, resolved.dp_size, "--dp-size"),
        (1, args.tokenizer_worker_num, "--tokenizer-worker-num"),
        (1, args.dcp_size, "--dcp-size"),
        ("null", args.disaggregation_mode, "--disaggregation-mode"),
    ):
        if actual != wanted:
            yield f"DDTREE supports {flag} {wanted} only, got {actual}"
    for flag in (
        "enable_dp_attention",
        "enable_hierarchical_cache",
        "enable_lora",
        "enable_two_batch_overlap",
        "enable_unified_memory",
        "speculative_use_rejection_sampling",
        "speculative_draft_window_size",
    ):
        if getattr(resolved, flag):
            yield f"DDTREE does not support --{flag.replace('_', '-')}"
    for flag in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if not 0 < getattr(args, flag) <= 1:
            yield f"--{flag.replace('_', '-')} is {getattr(args, flag)}, must be in (0, 1]; 1 = exact"


def _is_whole(value: Any) -> bool:
    """Engine takes what it is given; the command line only integers."""
    return isinstance(value, int) and not isinstance(value, bool)


def _block_size(server_args: Any) -> int:
    """B: the drafter's own, unless --speculative-dflash-block-size sets one."""
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
    from sglang.srt.utils.hf_transformers_utils import get_config

    if server_args.speculative_dflash_block_size is not None:
        block_size = int(server_args.speculative_dflash_block_size)
    else:
        config = get_config(
            server_args.speculative_draft_model_path,
            trust_remote_code=server_args.trust_remote_code,
            revision=server_args.speculative_draft_model_revision,
        )
        block_size = parse_dflash_draft_config(draft_hf_config=config).resolve_block_size(default=None)
        if block_size is None:
            raise ValueError(
                f"{server_args.speculative_draft_model_path} names no block_size: is it a DFlash drafter? "
                "If it is, set --speculative-dflash-block-size"
            )
    if not 2 <= block_size <= MAX_BLOCK:
        raise ValueError(f"the drafter's block size is {block_size}, must be in [2, {MAX_BLOCK}]")
    return block_size
