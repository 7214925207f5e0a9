"""What a tree needs of SGLang 0.5.17 that it lacks: four functions, changed for DDTREE and for nothing else,
and one method of the drafter's runner. Where the server traces, two more tell the tracer what became of a
step, of whatever algorithm; SGLang's own algorithms are read by those of tracing/builtin/table.py.

A hook corrects the original's answer where DDTREE runs, and hands it on as it is everywhere else.
`assert_applied` is called where they matter, since SGLang only logs a hook that it could not apply.
"""

from collections.abc import Callable
from typing import Any

from ddviz.engines.sglang_plugin.algorithm import NAME
from ddviz.engines.sglang_plugin.requests import refusal
from ddviz.engines.sglang_plugin.tracing.tracer import NoTracer


def capture_with_mask(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Capture the target's verify with its mask.

    DFLASH verifies a chain and captures no mask with Triton: a tree replayed through that graph would be
    verified as a causal chain, silently.
    """
    spec_info = original(runner, *args, **kwargs)
    if runner.model_runner.spec_algorithm.name == NAME and not runner.model_runner.is_draft_worker:
        spec_info.custom_mask = runner.buffers.custom_mask
    return spec_info


def row_for_two_steps(original: Callable[[Any], int], server_args: Any) -> int:
    """Width of a request's row of slots beyond the context: two steps are reserved ahead, not one.

    SGLang 0.5.17 leaves room for one; near the context limit the second is written into the neighbour's row
    (sglang #33579).
    """
    extra = original(server_args)
    if server_args.speculative_algorithm != NAME:
        return extra
    return max(extra, 2 * server_args.speculative_num_draft_tokens + server_args.page_size - 1)


def relay_no_hidden_states(original: Callable[..., bool], server_args: Any = None) -> bool:
    """The scheduler need not carry hidden states between steps: they go into the drafter's KV at once."""
    from sglang.srt.runtime_context import get_server_args

    if (server_args or get_server_args()).speculative_algorithm == NAME:
        return False
    return original(server_args)


def refuse_what_is_ignored(original: Callable[..., str | None], req: Any, enable_overlap: bool) -> str | None:
    """Refuse requests that SGLang's tree verify would serve as if they had not asked."""
    from sglang.srt.runtime_context import get_exec, get_server_args

    args = get_server_args()
    sentence = original(req, enable_overlap)
    if args.speculative_algorithm != NAME:
        return sentence
    if sentence is not None:
        return sentence.replace("DFLASH", NAME)
    if req.return_hidden_states:  # with overlap SGLang refuses it itself
        return f"{NAME} does not support return_hidden_states"
    budget = args.speculative_ddtree_budget
    return refusal(
        req.sampling_params,
        budget,
        args.speculative_ddtree_topk_cap or budget,
        get_exec().deterministic.enable_deterministic_inference,
    )


def keep_dtype_of_embeddings(runner: Any) -> None:
    """Of this one ModelRunner, the drafter's: an eager forward takes input embeddings as they are.

    SGLang 0.5.17 makes them bfloat16 whatever the drafter's dtype.
    """
    of_sglang = runner._extend_forward_kwargs

    def kwargs_of(forward_batch: Any, pp_proxy_tensors: Any) -> dict[str, Any]:
        kwargs = of_sglang(forward_batch, pp_proxy_tensors)
        if forward_batch.input_embeds is not None:
            kwargs["input_embeds"] = forward_batch.input_embeds
        return kwargs

    runner._extend_forward_kwargs = kwargs_of


def note_prefilled(original: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
    """Tell the tracer which requests have their first output token."""
    taken = original(processor, batch, result)
    tracer.prefilled([req for req in batch.reqs if req.inflight_middle_chunks <= 0 and not req.is_retracted])
    return taken


def note_settled(original: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
    """Tell the tracer what became of a step: which tokens joined the output, which requests ended."""
    ended = [req.finished() or req.is_retracted for req in batch.reqs]
    before = [len(req.output_ids) for req in batch.reqs]
    taken = original(processor, batch, result)
    tracer.settled(batch.reqs, ended, before, result)
    return taken


tracer = NoTracer()  # the worker, or the scheduler's hook, puts its own here

HOOKS: dict[str, Callable[..., Any]] = {
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.get_spec_info": (
        capture_with_mask
    ),
    "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len": row_for_two_steps,
    "sglang.srt.speculative.spec_utils.spec_need_hidden_states": relay_no_hidden_states,
    "sglang.srt.speculative.dflash_utils.validate_dflash_request": refuse_what_is_ignored,
}
_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
RESULT_HOOKS: dict[str, Callable[..., Any]] = {
    f"{_PROCESSOR}.process_batch_result_prefill": note_prefilled,
    f"{_PROCESSOR}.process_batch_result_decode": note_settled,
}


def register_hooks() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def register_tracing() -> list[str]:
    """The tracer's hooks, those that fit this SGLang; returns what does not, a sentence each."""
    from ddviz.engines.sglang_plugin.tracing.builtin import table

    results = {name: table.Hook(hook, ("batch", "result")) for name, hook in RESULT_HOOKS.items()}
    return table.register_tracing(results)


def assert_applied() -> None:
    """RuntimeError where SGLang did not apply a hook, naming it."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = sorted(set(HOOKS) - HookRegistry._patched)
    if missing:
        raise RuntimeError(f"DDTREE's hook on {missing[0]} was not applied; SGLang's log says why")
