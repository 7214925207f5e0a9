"""What the worker and the hooks call: which requests are traced, and the course of one step.

In:  batches of requests as the scheduler has them, tensors as the stages of a step leave them.
Out: jobs for the writer's thread.
Not here: what is read (reading.py), how it is written (writer.py).

A request is traced where its `custom_params` say so, {"ddviz": {"level": "standard"}}, or where the server
traces all (DDVIZ_TRACE=light or standard). A step in which nobody is traced costs a look at every request.

    step()       before draft       which rows are traced; NO_STEP where none is
    keep, raw    between stages     what a later stage overwrites
    launched()   after commit       everything copied towards the host
    settled()    when the scheduler took the result: emitted tokens, finish; the writer gets the step
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch

from ddviz.engines.sglang_plugin.batch import AcceptedBatch, TreeBatch
from ddviz.engines.sglang_plugin.requests import tree_limits
from ddviz.engines.sglang_plugin.tracing import reading
from ddviz.engines.sglang_plugin.tracing.ring import Copied, Ring
from ddviz.engines.sglang_plugin.tracing.steps import HostFacts
from ddviz.engines.sglang_plugin.tracing.writer import (
    Begin,
    Ended,
    Lost,
    Prefilled,
    Row,
    Stepped,
    TraceWriter,
)
from ddviz.trace import schema

KEY = "ddviz"
FOLDER, LEVEL = "DDVIZ_TRACE_DIR", "DDVIZ_TRACE"  # environment
MOST_FAILURES = 3
RING_SLOTS = 64
RING_FULL = "the ring between the device and the writer was full"

logger = logging.getLogger(__name__)


def trace_folder() -> Path | None:
    """Where traces go; None: this server traces nothing."""
    value = os.environ.get(FOLDER)
    return Path(value) if value else None


def asked_level(custom_params: dict[str, Any] | None, default: str | None) -> schema.CaptureLevel | None:
    """The level at which a request is traced, None = not. A level that is not known counts as standard."""
    asked = (custom_params or {}).get(KEY)
    level = asked.get("level", "standard") if isinstance(asked, dict) else default
    if level in (None, "off"):
        return None
    return level if level in get_args(schema.CaptureLevel) else "standard"


@dataclass(slots=True)
class Traced:
    """One request under way."""

    rid: str  # of the request and of its trace
    level: schema.CaptureLevel
    steps: int = 0  # launched
    written: int = 0  # settled
    begun: bool = False


class NoStep:
    """A step in which nobody is traced."""

    def keep(self, **tensors: torch.Tensor) -> None: ...
    def tree(self, tree: TreeBatch, mask: torch.Tensor, seq_lens: torch.Tensor) -> None: ...
    def raw(self, logits: torch.Tensor, tree: TreeBatch) -> None: ...
    def adjusted(self, logits: torch.Tensor, tree: TreeBatch) -> None: ...
    def sampled(self, *tensors: torch.Tensor | slice) -> None: ...
    def launched(self, result: Any, graph: bool) -> None: ...

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        yield

    @property
    def moves(self) -> torch.Tensor | None:
        return None


NO_STEP = NoStep()


class NoTracer:
    """A server that traces nothing."""

    def step(self, batch: Any, width: int, path_len: int) -> NoStep:
        return NO_STEP

    def prefilled(self, reqs: list[Any]) -> None: ...
    def settled(self, reqs: list[Any], ended: list[bool], before: list[int], result: Any) -> None: ...


@dataclass
class Pending:
    """A step whose arrays are under way, hung on SGLang's result until the scheduler has taken it."""

    copied: Copied | None
    lost: str  # why it is not, where it is not copied
    rows: list[tuple[Traced, HostFacts]]
    events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]]

    def times_us(self) -> dict[str, float]:
        return {name: round(1000 * begin.elapsed_time(end), 1) for name, begin, end in self.events}


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """A failing tracer never breaks serving: after an error the rest of the step is not traced."""

    @functools.wraps(method)
    def guarded(self: "TracedStep", *args: Any, **kwargs: Any) -> None:
        if not self.broken:
            with self.tracer.guarded():
                self.broken = True
                method(self, *args, **kwargs)
                self.broken = False

    return guarded


class TracedStep(NoStep):
    """A step some rows of which are traced. Its tensors are those rows' alone."""

    def __init__(
        self, tracer: "Tracer", batch: Any, rows: list[int], traced: list[Traced], width: int, path_len: int
    ) -> None:
        self.tracer, self._batch = tracer, batch
        self.broken = False
        self._copied: Copied | None = None
        self._row_list, self._traced = rows, traced
        device = batch.seq_lens.device
        self._rows = torch.tensor(rows, device=device)
        self._kept: dict[str, torch.Tensor] = {"seq_len": batch.seq_lens[self._rows].long()}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._sampled: list[dict[str, torch.Tensor]] = []
        self._moves = torch.zeros((len(batch.reqs), path_len, 2), dtype=torch.int64, device=device)

    @property
    def moves(self) -> torch.Tensor:
        """[bs, S, 2] where the packing kernel notes source and destination slots."""
        return self._moves

    @_harmless
    def keep(self, **tensors: torch.Tensor) -> None:
        """Tensors [bs, ...]: the traced rows are copied at once."""
        self._kept |= {name: tensor[self._rows] for name, tensor in tensors.items()}

    @_harmless
    def tree(self, tree: TreeBatch, mask: torch.Tensor, seq_lens: torch.Tensor) -> None:
        self._kept |= reading.tree_arrays(tree, self._rows)
        self._kept["mask"] = reading.mask_cells(mask, seq_lens, tree.width, self._rows)

    @_harmless
    def raw(self, logits: torch.Tensor, tree: TreeBatch) -> None:
        self._kept |= reading.raw_statistics(logits, tree, self._rows)

    @_harmless
    def adjusted(self, logits: torch.Tensor, tree: TreeBatch) -> None:
        """Logits [bs*T, V] of a greedy step after something changed them: what its argmax was taken from."""
        bs, width = tree.tokens.shape
        probs = torch.softmax(logits.view(bs, width, -1)[self._rows].float(), dim=-1)
        self._kept |= reading.filtered_statistics(probs, tree, self._rows)

    @_harmless
    def sampled(
        self,
        part: slice,
        tree: TreeBatch,
        probs: torch.Tensor,
        rejected: torch.Tensor,
        accepted: AcceptedBatch,
        coins: torch.Tensor,
        final_coins: torch.Tensor,
    ) -> None:
        """After the sampling kernel, for the rows `part` of the batch that it was given."""
        own = [row for row in self._row_list if part.start <= row < part.stop]
        if not own:
            return
        rows = torch.tensor(own, device=probs.device)
        local = rows - part.start
        path_end = accepted.num_accepted[rows].long().unsqueeze(1)
        last = accepted.accept_index[rows].gather(1, path_end).squeeze(1).long()
        bonus = accepted.predicts[last].long()
        draw = reading.bonus_draw(probs[local], rejected[local], last - rows * tree.width, bonus)
        statistics = reading.filtered_statistics(probs[local], tree, rows)
        self._sampled.append({**statistics, **draw, "coins": coins[rows], "final_coin": final_coins[rows]})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = self._mark()
        yield
        end = self._mark()
        if begin is not None and end is not None:
            self._events.append((name, begin, end))

    def launched(self, result: Any, graph: bool) -> None:
        """Copy all that was kept towards the host; hang what is known on the result."""
        self._copy()
        with self.tracer.guarded():
            lost = "tracing failed, see the server's log" if self.broken else RING_FULL
            facts = self._facts(graph)
            for request in self._traced:
                request.steps += 1
            rows = list(zip(self._traced, facts, strict=True))
            result.ddviz_step = Pending(self._copied, lost, rows, self._events)

    @_harmless
    def _copy(self) -> None:
        for name in self._sampled[0] if self._sampled else ():
            self._kept[name] = torch.cat([part[name] for part in self._sampled])
        moves = self._moves[self._rows]
        self._kept |= {"src_slots": moves[..., 0].contiguous(), "dst_slots": moves[..., 1].contiguous()}
        self._copied = self.tracer.ring.put(self._kept)

    def _facts(self, graph: bool) -> list[HostFacts]:
        return [
            HostFacts(
                index=request.steps,
                batch_id=int(self._batch.forward_iter or 0),
                batch_size=len(self._batch.reqs),
                row=row,
                graph=graph,
                reserved_len=int(self._batch.reqs[row].kv.kv_allocated_len),
                row_width=self.tracer.row_width,
            )
            for row, request in zip(self._row_list, self._traced, strict=True)
        ]

    def _mark(self) -> torch.cuda.Event | None:
        if self._rows.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass
class Tracer(NoTracer):
    """Traces of one scheduler's process. Its methods never raise: an error is logged."""

    folder: Path
    header: schema.Header  # what all traces of this server have in common
    ring: Ring
    writer: TraceWriter
    row_width: int  # slots that a request's row has
    default_level: str | None = None
    requests: dict[str, Traced] = field(default_factory=dict)
    failures: int = 0

    def step(self, batch: Any, width: int, path_len: int) -> NoStep:
        """The step that is about to begin."""
        with self.guarded():
            found = [(row, self._of(req)) for row, req in enumerate(batch.reqs)]
            rows = [row for row, traced in found if traced is not None]
            if rows:
                traced = [t for _, t in found if t is not None]
                return TracedStep(self, batch, rows, traced, width, path_len)
        return NO_STEP

    def prefilled(self, reqs: list[Any]) -> None:
        """Requests whose prefill the scheduler has just taken: the first output token is there."""
        with self.guarded():
            for req in reqs:
                traced = self._of(req)
                if traced is None or not req.output_ids:
                    continue
                if not traced.begun:
                    self._begin(req, traced)
                event = schema.Prefill(token=req.output_ids[-1], cached_tokens=int(req.cached_tokens))
                self.writer.put(Prefilled(traced.rid, event))
                self._end_if_finished(req, traced)

    def settled(self, reqs: list[Any], ended: list[bool], before: list[int], result: Any) -> None:
        """The scheduler has taken a step's result.

        ended, before  per request, from before it did: finished or retracted already, length of its output
        """
        with self.guarded():
            pending: Pending | None = getattr(result, "ddviz_step", None)
            if pending is None:
                return
            by_rid = {req.rid: i for i, req in enumerate(reqs)}
            rows = []
            for at, (traced, facts) in enumerate(pending.rows):
                i = by_rid[traced.rid]
                emitted = None if ended[i] else list(reqs[i].output_ids_through_stop[before[i] :])
                if emitted is not None:
                    traced.written += 1
                    rows.append(Row(traced.rid, at, facts, traced.level, emitted))
                    if pending.copied is None:
                        self.writer.put(Lost(traced.rid, facts.index, pending.lost))
            if pending.copied is not None:
                self.writer.put(Stepped(pending.copied, rows, pending.times_us))
            for traced, _ in pending.rows:
                i = by_rid[traced.rid]
                if not ended[i]:
                    self._end_if_finished(reqs[i], traced)
                elif reqs[i].is_retracted:
                    traced.steps = traced.written  # steps under way at the retraction do not count

    def _of(self, req: Any) -> Traced | None:
        level = asked_level(req.sampling_params.custom_params, self.default_level)
        if level is None or self.failures >= MOST_FAILURES:
            return None
        return self.requests.setdefault(req.rid, Traced(req.rid, level))

    def _begin(self, req: Any, traced: Traced) -> None:
        params = req.sampling_params
        budget, topk_cap = tree_limits(params.custom_params, self.header.budget, self.header.topk_cap)
        header = msgspec.structs.replace(
            self.header,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            budget=budget,
            topk_cap=topk_cap,
            sampling=sampling_of(params),
            level=traced.level,
            request_id=traced.rid,
        )
        traced.begun = True
        path = self.folder / f"{_file_name(traced.rid)}.ddviz"
        self.writer.put(Begin(traced.rid, path, header, list(req.origin_input_ids), None))

    def _end_if_finished(self, req: Any, traced: Traced) -> None:
        if not req.finished():
            return
        kind = req.finished_reason.to_json().get("type")
        reason = {"stop": "stop", "length": "length", "abort": "stopped"}.get(kind, "unknown")
        self.writer.put(
            Ended(
                traced.rid,
                schema.End(
                    finish_reason=reason,
                    output_ids=list(req.output_ids_through_stop),
                    steps=traced.written,
                ),
            )
        )
        self.requests.pop(traced.rid, None)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.failures += 1
            logger.exception("ddviz: tracing failed (%d of %d)", self.failures, MOST_FAILURES)


def sampling_of(params: Any) -> schema.SamplingParams:
    """SGLang's parameters in the trace's terms; SGLang turns temperature 0 into 1 with top_k 1."""
    top_k = 0 if params.top_k >= 1 << 30 or params.top_k < 0 else params.top_k
    greedy = top_k == 1
    return schema.SamplingParams(
        temperature=0.0 if greedy else params.temperature,
        top_k=top_k,
        top_p=params.top_p,
        seed=params.sampling_seed,
        max_new_tokens=params.max_new_tokens,
        stop_token_ids=sorted(params.stop_token_ids or ()),
    )


def _file_name(rid: str) -> str:
    """A client chooses its rid: only plain characters of it become part of a path."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in rid)[:80]
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{plain or 'request'}"
