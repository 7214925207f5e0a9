"""What tests of the plugin without a GPU share: a tracer, and the scratch that the sampling kernel leaves."""

from ddviz.engines.sglang_plugin.tracing.ring import Ring
from ddviz.engines.sglang_plugin.tracing.tracer import Tracer
from ddviz.engines.sglang_plugin.tracing.writer import TraceWriter
from ddviz.trace import schema


def new_tracer(
    folder, *, block_size, budget, topk_cap, vocab_size, row_width, ring_slots=8, default_level=None
):
    """A tracer of a server whose target is a table; close its `writer` before reading what it wrote."""
    header = schema.Header(
        created="2026-11-29T00:00:00+00:00",
        engine=schema.EngineInfo(name="sglang", version="0.5.17"),
        algorithm="DDTREE",
        target="table",
        block_size=block_size,
        budget=budget,
        topk_cap=topk_cap,
        sampling=schema.SamplingParams(),
        vocab_size=vocab_size,
        request_id="",
    )
    ring = Ring(ring_slots, 200_000, "cpu")
    writer = TraceWriter(ring, lambda token: bytes([97 + token]))
    return Tracer(folder, header, ring, writer, row_width, default_level)


def note_rejected(rejected, probs, candidates, next_token, next_sibling, accept_index, num_accepted):
    """As the kernel leaves its scratch [bs, T, V]: the mass of the children refused at a path's end."""
    bs, width = candidates.shape
    for b in range(bs):
        count = int(num_accepted[b])
        last = int(accept_index[b, count]) - b * width
        child = int(next_token[b, last]) if count < accept_index.shape[1] - 1 else -1
        while child != -1:
            token = int(candidates[b, child])
            rejected[b, last, token] = float(probs[b, last, token])
            child = int(next_sibling[b, child])
