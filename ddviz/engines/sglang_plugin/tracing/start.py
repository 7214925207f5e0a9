"""Start of tracing in a scheduler's process, after its CUDA graphs are captured.

Only rank 0 of tensor parallelism writes: every rank has the same trees and the same accepted paths.
"""

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddviz.engines.base import TARGET_TOP
from ddviz.engines.sglang_plugin import faults
from ddviz.engines.sglang_plugin.requests import level_of_all
from ddviz.engines.sglang_plugin.tracing.ddtree_step import DDTreeStep
from ddviz.engines.sglang_plugin.tracing.notes import Notes
from ddviz.engines.sglang_plugin.tracing.process import Tokenizer, WriterProcesses
from ddviz.engines.sglang_plugin.tracing.ring import Ring
from ddviz.engines.sglang_plugin.tracing.slots import Slots
from ddviz.engines.sglang_plugin.tracing.traced_step import TracedStep
from ddviz.engines.sglang_plugin.tracing.tracer import NoTracer, Tracer, trace_folder
from ddviz.trace import schema

LEAST_SLOTS, MOST_SLOTS = 64, 256
RING_BYTES = 256 << 20  # pinned memory for more than the least
MOST_WRITERS = 4

logger = logging.getLogger(__name__)


def start(worker: Any) -> NoTracer:
    """The tracer of a DDTreeWorker."""
    size = row_bytes(worker.tree_width, worker.block_size, worker.candidates)
    runner = worker.model_runner

    def kind(ring: Ring) -> Callable[..., TracedStep]:
        vocabulary = int(runner.model_config.vocab_size)
        notes = Notes(worker.largest_step, worker.head.lists, vocabulary, ring)
        captured = [step for step in worker.captured_steps if step.bs * size <= ring.slots.size]
        if captured:
            rows = max(step.bs for step in captured) * worker.tree_width
            logits = runner.graph_shared_output.get_logits_buffer(vocabulary, rows=rows)
            with torch.inference_mode():
                notes.capture(captured, logits, runner.attn_backend.verify_mask.buffer)
        return partial(DDTreeStep, notes)

    return begin(worker.server_args, runner, worker.ps.tp_rank, size, lambda: header_of(worker), kind)


def begin(
    args: Any,
    model_runner: Any,
    tp_rank: int,
    row_size: int,
    header: Callable[[], schema.Header],
    kind: Callable[[Ring], Callable[..., TracedStep]],
) -> NoTracer:
    """A tracer; one that does nothing where nothing is to be traced or it can't start.

    args, model_runner  the server's ServerArgs, and the target's ModelRunner
    row_size            bytes that a traced row of a step takes at most
    header, kind        make what the tracer holds by these names
    """
    folder = trace_folder()
    if folder is None or tp_rank != 0:
        return NoTracer()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        most = int(model_runner.max_running_requests)
        slots = Slots(slots_of(most * row_size), most * row_size, readers=writers_of(os.cpu_count() or 1))
        ring = Ring(slots, model_runner.device)
        noted_by = kind(ring)  # may capture graphs: before there are other threads
        tracer = Tracer(
            folder=folder,
            header=header(),
            ring=ring,
            writer=WriterProcesses(slots, _tokenizer(args)),
            kind=noted_by,
            row_width=int(model_runner.req_to_token_pool.req_to_token.shape[1]),
            default_level=level_of_all(),
        )
        logger.info("ddviz: traces go to %s", folder)
        return tracer
    except Exception:
        logger.exception("ddviz: tracing could not start; the server goes on without")
        return NoTracer()


def slots_of(size: int) -> int:
    """How many slots of `size` bytes: a quarter of a second of a quick server, if memory allows."""
    return max(LEAST_SLOTS, min(MOST_SLOTS, RING_BYTES // size))


def writers_of(cpus: int) -> int:
    """How many processes write, on a machine of so many CPUs."""
    return max(1, min(MOST_WRITERS, cpus // 4))


def row_bytes(width: int, block_size: int, candidates: int) -> int:
    """More than the arrays of one traced row take: draft lists, mask cells, per node and per path arrays."""
    per_node = 128 + 2 * TARGET_TOP * 8
    return candidates * (block_size - 1) * 12 + width * (width + per_node) + 64 * block_size + 256


def header_of(worker: Any) -> schema.Header:
    """What every trace of a DDTREE server says."""
    return server_header(
        worker.server_args,
        worker.model_runner,
        algorithm="DDTREE",
        block_size=worker.block_size,
        budget=worker.budget,
        topk_cap=worker.topk_cap,
    )


def server_header(
    args: Any, model_runner: Any, more_options: tuple[str, ...] = (), **own: Any
) -> schema.Header:
    """What every trace of a server says; sampling, limits, level and id are each request's own.

    more_options  names of ServerArgs, beside those that say how any server runs
    own           fields that its algorithm gives
    """
    import sglang

    options = (
        "attention_backend",
        "tp_size",
        "disable_overlap_schedule",
        "context_length",
        "random_seed",
        *more_options,
    )
    draft = args.speculative_draft_model_path
    return schema.Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=schema.EngineInfo(
            name="sglang",
            version=sglang.__version__,
            device=f"cuda: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else None,
            options={
                "dtype": str(model_runner.dtype).removeprefix("torch."),  # what "auto" came to
                **{name: getattr(args, name) for name in options},
                **faults.told(),
            },
        ),
        target=_model_name(args.model_path),
        draft=None if draft is None else _model_name(draft),
        sampling=schema.SamplingParams(),
        threshold_single=args.speculative_accept_threshold_single,
        threshold_acc=args.speculative_accept_threshold_acc,
        vocab_size=int(model_runner.model_config.vocab_size),
        request_id="",
        **own,
    )


def _tokenizer(args: Any) -> Tokenizer:
    path = "" if args.skip_tokenizer_init else args.tokenizer_path
    return Tokenizer(path or "", bool(args.trust_remote_code))


def _model_name(path: str) -> str:
    return Path(path).name if Path(path).exists() else path
