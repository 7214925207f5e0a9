"""What the worker and the hooks call: which requests are traced, and what became of their steps.

In:  batches of requests as the scheduler has them, and the results that it took.
Out: jobs for the writers' processes.
Not here: the course of one step (traced_step.py), how it is written (writer.py).

A request is traced where its `custom_params` say so, {"ddviz": {"level": "standard"}}, or where the server
traces all (DDVIZ_TRACE=light or standard). A step in which nobody is traced costs a look at every request.

    step()       before draft: which rows are traced; NO_STEP where none is
    settled()    when the scheduler took the result: emitted tokens, finish; the writers get the step
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from ddviz.engines.sglang_plugin.requests import OFF, TRACE_KEY, tree_limits
from ddviz.engines.sglang_plugin.tracing.clock import Clock
from ddviz.engines.sglang_plugin.tracing.jobs import Begin, Ended, Lost, Prefilled, Row, Stepped
from ddviz.engines.sglang_plugin.tracing.process import WriterProcesses
from ddviz.engines.sglang_plugin.tracing.ring import Ring, Sent
from ddviz.engines.sglang_plugin.tracing.traced_step import (
    FAILED,
    NO_STEP,
    NoStep,
    Pending,
    Traced,
    TracedStep,
)
from ddviz.engines.sglang_plugin.tracing.writer import TraceWriter
from ddviz.trace import schema

FOLDER = "DDVIZ_TRACE_DIR"  # environment
MOST_FAILURES = 3
MOST_INDICES = 1024

logger = logging.getLogger(__name__)


def trace_folder() -> Path | None:
    """Where traces go; None: this server traces nothing."""
    value = os.environ.get(FOLDER)
    return Path(value) if value else None


def asked_level(custom_params: dict[str, Any] | None, default: str | None) -> schema.CaptureLevel | None:
    """The level at which a request is traced, None = not. A level that is not known counts as standard:
    DDTREE has refused it, SGLang's own algorithms refuse nothing.
    """
    asked = (custom_params or {}).get(TRACE_KEY)
    level = asked.get("level", "standard") if isinstance(asked, dict) else default
    if level in (None, OFF):
        return None
    return "light" if level == "light" else "standard"


class NoTracer:
    """A server that traces nothing."""

    def step(self, batch: Any) -> NoStep:
        return NO_STEP

    def prefilled(self, reqs: list[Any]) -> None: ...
    def settled(self, reqs: list[Any], ended: list[bool], before: list[int], result: Any) -> None: ...


@dataclass
class Tracer(NoTracer):
    """Traces of one scheduler's process. Its methods never raise: an error is logged."""

    folder: Path
    header: schema.Header  # what all traces of this server have in common
    ring: Ring
    writer: WriterProcesses | TraceWriter  # the latter, in this process, is for tests
    kind: Callable[..., TracedStep]  # what a step is noted by
    row_width: int  # slots that a request's row has
    default_level: str | None = None
    requests: dict[str, Traced] = field(default_factory=dict)
    failures: int = 0
    indices: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)
    _clocks: list[Clock] = field(default_factory=list)  # of steps that are over
    _second: str = ""
    _given: dict[str, int] = field(default_factory=dict)  # names of this second -> the last number behind it

    def step(self, batch: Any) -> NoStep:
        """The step that is about to begin."""
        with self.guarded():
            found = [(row, self._of(req)) for row, req in enumerate(batch.reqs)]
            rows = [row for row, traced in found if traced is not None]
            if rows:
                traced = [t for _, t in found if t is not None]
                return self.kind(self, batch, rows, traced)
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
            places = [by_rid[traced.rid] for traced, _ in pending.rows]
            lost: str | None = pending.lost
            if pending.sent is not None:
                lost = FAILED
                with self.guarded():
                    emitted = {
                        at: list(reqs[i].output_ids_through_stop[before[i] :])
                        for at, i in enumerate(places)
                        if not ended[i]
                    }
                    self._tell_step(pending, pending.sent, emitted)
                    lost = None
                if lost is not None:
                    self.ring.slots.give_back(pending.sent.turn)
            for (traced, facts), i in zip(pending.rows, places, strict=True):
                if not ended[i]:
                    traced.written += 1
                    if lost is not None:
                        self.writer.put(Lost(traced.rid, facts.index, lost))
                    self._end_if_finished(reqs[i], traced)
                elif reqs[i].is_retracted:
                    traced.steps = traced.written  # steps under way at the retraction do not count
            pending.clock.reset()
            self._clocks.append(pending.clock)

    def _tell_step(self, pending: Pending, sent: Sent, emitted: dict[int, list[int]]) -> None:
        """emitted: by place in pending.rows, of the requests that go on."""
        rows = []
        for at, tokens in emitted.items():
            traced, facts = pending.rows[at]
            rows.append(Row(traced.rid, at, facts, traced.level, tokens))
        pending.clock.wait()  # the scheduler has waited for what came after it already
        job = Stepped(sent.turn, sent.layout.encoded, rows, pending.clock.times_us())
        self.writer.put(job)

    def clock(self, device: torch.device) -> Clock:
        """Of a step that begins."""
        return self._clocks.pop() if self._clocks else Clock(device)

    def on_device(self, rows: list[int], device: torch.device) -> torch.Tensor:
        """[n] int64. Kept, since a copy of a list to the device waits for the device."""
        key = tuple(rows)
        if key not in self.indices:
            if len(self.indices) >= MOST_INDICES:
                self.indices.clear()
            self.indices[key] = torch.tensor(rows, device=device)
        return self.indices[key]

    def _of(self, req: Any) -> Traced | None:
        if self.failures >= MOST_FAILURES:
            return None
        known = self.requests.get(req.rid)
        if known is not None:
            return known
        level = asked_level(req.sampling_params.custom_params, self.default_level)
        if level is None or not _is_text(req.rid):
            return None
        return self.requests.setdefault(req.rid, Traced(req.rid, level))

    def _begin(self, req: Any, traced: Traced) -> None:
        params = req.sampling_params
        budget, topk_cap = self.header.budget, self.header.topk_cap
        if budget is not None and topk_cap is not None:  # DDTREE, of which a request may ask for less
            budget, topk_cap = tree_limits(params.custom_params, budget, topk_cap)
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
        path = self._free_path(traced.rid)
        self.writer.put(Begin(traced.rid, str(path), header, list(req.origin_input_ids)))

    def _free_path(self, rid: str) -> Path:
        """NAME, or NAME-2, -3, ...: no file has it, and none that a writer has yet to make."""
        second = time.strftime("%Y%m%d-%H%M%S")
        if second != self._second:
            self._second, self._given = second, {}
        name = plain = f"{second}-{_plain(rid)}"
        while name in self._given or os.path.lexists(self.folder / f"{name}.ddviz"):
            self._given[plain] = self._given.get(plain, 1) + 1
            name = f"{plain}-{self._given[plain]}"
        self._given[name] = 1
        return self.folder / f"{name}.ddviz"

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

    def guarded(self) -> "Guard":
        """A context that no error leaves: it is logged."""
        return Guard(self)


class Guard:
    """Entered several times a step, so it is a class: a generator takes twice as long."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._tracer.failures += 1
        logger.exception("ddviz: tracing failed (%d of %d)", self._tracer.failures, MOST_FAILURES)
        return True


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


def _is_text(rid: str) -> bool:
    """Half a surrogate pair, which JSON lets a client send, can't be written."""
    try:
        rid.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(rid: str) -> str:
    """A client chooses its rid: only plain characters of it become part of a path."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in rid)[:80]
    return plain or "request"
