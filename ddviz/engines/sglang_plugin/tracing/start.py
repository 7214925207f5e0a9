"""Start of tracing in a scheduler's process, after its CUDA graphs are captured.

Only rank 0 of tensor parallelism writes: every rank has the same trees and the same accepted paths.
"""

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ddviz.engines.base import TARGET_TOP
from ddviz.engines.sglang_plugin.tracing import tracer as tracing
from ddviz.engines.sglang_plugin.tracing.ring import Ring
from ddviz.engines.sglang_plugin.tracing.writer import TraceWriter
from ddviz.trace import schema

logger = logging.getLogger(__name__)


def start(worker: Any) -> tracing.NoTracer:
    """The tracer of a DDTreeWorker; one that does nothing where nothing is to be traced or it can't start."""
    folder = tracing.trace_folder()
    if folder is None or worker.ps.tp_rank != 0:
        return tracing.NoTracer()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        args = worker.server_args
        most = int(worker.model_runner.max_running_requests)
        size = most * row_bytes(worker.tree_width, worker.block_size, worker.candidates)
        ring = Ring(tracing.RING_SLOTS, size, worker.device)
        writer = TraceWriter(ring, token_bytes_of(args))
        logger.info("ddviz: traces go to %s", folder)
        return tracing.Tracer(
            folder=folder,
            header=header_of(worker),
            ring=ring,
            writer=writer,
            row_width=int(worker.model_runner.req_to_token_pool.req_to_token.shape[1]),
            default_level=os.environ.get(tracing.LEVEL) or None,
        )
    except Exception:
        logger.exception("ddviz: tracing could not start; the server goes on without")
        return tracing.NoTracer()


def row_bytes(width: int, block_size: int, candidates: int) -> int:
    """More than the arrays of one traced row take: draft lists, mask cells, per node and per path arrays."""
    per_node = 128 + 2 * TARGET_TOP * 8
    return candidates * (block_size - 1) * 12 + width * (width + per_node) + 64 * block_size + 256


def header_of(worker: Any) -> schema.Header:
    """What every trace of a server says; sampling, limits, level and id are each request's own."""
    import sglang

    args = worker.server_args
    options = (
        "dtype",
        "attention_backend",
        "tp_size",
        "disable_overlap_schedule",
        "context_length",
        "random_seed",
    )
    return schema.Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=schema.EngineInfo(
            name="sglang",
            version=sglang.__version__,
            device=f"cuda: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else None,
            options={name: getattr(args, name) for name in options},
        ),
        algorithm="DDTREE",
        target=_model_name(args.model_path),
        draft=_model_name(args.speculative_draft_model_path),
        block_size=worker.block_size,
        budget=worker.budget,
        topk_cap=worker.topk_cap,
        sampling=schema.SamplingParams(),
        threshold_single=args.speculative_accept_threshold_single,
        threshold_acc=args.speculative_accept_threshold_acc,
        vocab_size=int(worker.model_runner.model_config.vocab_size),
        request_id="",
    )


def token_bytes_of(args: Any) -> Callable[[int], bytes | None]:
    """From token id to raw bytes; nothing for any id where the server has no tokenizer."""
    if args.skip_tokenizer_init and not args.tokenizer_path:
        return lambda token: None
    try:
        from transformers import AutoTokenizer

        from ddviz.engines.token_bytes import token_bytes_function

        tokenizer = AutoTokenizer.from_pretrained(
            args.tokenizer_path, trust_remote_code=args.trust_remote_code, local_files_only=True
        )
        return token_bytes_function(tokenizer)
    except Exception as error:
        logger.warning("ddviz: traces carry no token text: %s", error)
        return lambda token: None


def _model_name(path: str) -> str:
    return Path(path).name if Path(path).exists() else path
