"""Where tracing of an algorithm of SGLang's own starts, and where each of its steps begins and ends.

In:  a Scheduler whose workers are made and whose CUDA graphs are captured.
Out: a tracer with a header that says which algorithm runs; a worker whose steps are noted.
Not here: DDTREE, whose worker starts its own tracer (../start.py).
"""

import logging
from collections.abc import Callable
from typing import Any

from ddviz.engines.sglang_plugin.tracing.builtin.step import BuiltinStep, UnderWay
from ddviz.engines.sglang_plugin.tracing.start import begin, row_bytes, server_header
from ddviz.engines.sglang_plugin.tracing.tracer import NoTracer, Tracer
from ddviz.trace import schema

logger = logging.getLogger(__name__)

OPTIONS = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
_SCORED = ("EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP")  # they draft with EAGLE's loop
_TERMS: dict[str, schema.Algorithm] = {
    "EAGLE": "EAGLE",
    "EAGLE3": "EAGLE3",
    "STANDALONE": "EAGLE",
    "FROZEN_KV_MTP": "EAGLE",
    "NGRAM": "NGRAM",
    "DFLASH": "DFLASH",
}


def note_workers(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """`Scheduler.init_model_worker`: after it, everything is loaded and captured."""
    answer = original(scheduler, *args, **kwargs)
    try:
        _start(scheduler)
    except Exception:
        logger.exception("ddviz: tracing could not start; the server goes on without")
    return answer


def _start(scheduler: Any) -> None:
    from ddviz.engines.sglang_plugin import hooks
    from ddviz.engines.sglang_plugin.tracing.builtin.table import warn_of_missing

    worker = scheduler.model_worker
    if scheduler.spec_algorithm.is_none():
        logger.warning("ddviz: this server drafts nothing, so there are no steps to trace")
        return
    if type(worker).__module__.startswith("ddviz."):
        return
    warn_of_missing()
    args, runner = scheduler.server_args, scheduler.tp_worker.model_runner
    size = row_bytes(int(args.speculative_num_draft_tokens), path_len(args), 0)
    name = scheduler.spec_algorithm.name
    tracer = begin(
        args,
        runner,
        scheduler.ps.tp_rank,
        size,
        lambda: header_of(name, args, runner),
        lambda ring: BuiltinStep,
    )
    hooks.tracer = tracer
    if isinstance(tracer, Tracer):
        note_steps(worker, tracer)


def note_steps(worker: Any, tracer: NoTracer) -> None:
    """From now on the worker's decoding steps are noted; the worker is an instance, of whatever class."""
    original = worker.forward_batch_generation

    def forward_batch_generation(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.forward_mode.is_decode() or batch.is_extend_in_batch:
            return original(batch, *args, **kwargs)
        step = tracer.step(batch)
        if not isinstance(step, BuiltinStep):
            return original(batch, *args, **kwargs)
        UnderWay.step = step
        try:
            result = original(batch, *args, **kwargs)
        finally:
            UnderWay.step = None
        step.finished(result)
        return result

    worker.forward_batch_generation = forward_batch_generation


def header_of(name: str, args: Any, model_runner: Any) -> schema.Header:
    """What every trace of this server says.

    name  SGLang's of the algorithm; one that the trace format has not is said in a note
    """
    algorithm = _TERMS.get(name) or ("DDTREE" if "TREE" in name else "EAGLE")
    topk = args.speculative_eagle_topk
    noted = [] if algorithm == name else [f"SGLang's name of the algorithm: {name}"]
    return server_header(
        args,
        model_runner,
        OPTIONS,
        algorithm=algorithm,
        block_size=path_len(args),
        topk_cap=topk if name in _SCORED else 1 if name == "DFLASH" else None,
        score_kind="prob" if name in _SCORED and (topk or 1) > 1 else "none",
        notes=noted,
    )


def path_len(args: Any) -> int:
    """S, nodes of the longest path that can be accepted: B of the trace. A draft of k steps gives k + 1."""
    if args.speculative_algorithm in _SCORED:
        return int(args.speculative_num_steps) + 1
    return int(args.speculative_num_draft_tokens)
