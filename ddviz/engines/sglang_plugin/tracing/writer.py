"""A thread that writes traces: it waits for copies, not the scheduler.

In:  jobs, in the order in which the scheduler's results came.
Out: one NAME.ddviz a request, every event on disk when it was written.
Not here: which requests are traced, what a step holds.
"""

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ddviz.engines.sglang_plugin.tracing.ring import Copied, Ring
from ddviz.engines.sglang_plugin.tracing.rotation import rotation
from ddviz.engines.sglang_plugin.tracing.steps import HostFacts, step_of
from ddviz.errors import TraceError
from ddviz.trace import schema
from ddviz.trace.writer import Recorder

logger = logging.getLogger(__name__)


class Begin(NamedTuple):
    rid: str
    path: Path
    header: schema.Header
    prompt_ids: list[int]
    text: str | None  # None: made from the ids


class Prefilled(NamedTuple):
    rid: str
    event: schema.Prefill


class Row(NamedTuple):
    """One traced request of one step: where it stands in the copied arrays, and what became of it."""

    rid: str
    at: int
    facts: HostFacts
    level: schema.CaptureLevel
    emitted: list[int] | None  # None: the step was under way when the request had ended already


class Stepped(NamedTuple):
    copied: Copied
    rows: list[Row]
    times_us: Callable[[], dict[str, float]]  # asked once the copy is there


class Lost(NamedTuple):
    rid: str
    index: int
    reason: str


class Ended(NamedTuple):
    rid: str
    event: schema.End


Job = Begin | Prefilled | Stepped | Lost | Ended


class TraceWriter:
    """Takes jobs with `put`, from any thread, and never blocks it. `close` waits until all are written."""

    def __init__(self, ring: Ring, token_bytes: Callable[[int], bytes | None]) -> None:
        self._ring, self._token_bytes = ring, token_bytes
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._recorders: dict[str, Recorder] = {}
        self._rotation = rotation()
        self._thread = threading.Thread(target=self._run, name="ddviz-trace-writer", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self, timeout: float | None = None) -> None:
        self._jobs.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._do(job)
            except TraceError as error:  # one trace could not be written; the others go on
                logger.error("ddviz: %s", error)
                self._forget(job)
            except Exception:
                logger.exception("ddviz: a trace event was lost")
        for recorder in self._recorders.values():
            recorder.close()

    def _do(self, job: Job) -> None:
        match job:
            case Begin():
                recorder = Recorder(job.path, job.header, self._token_bytes)
                self._recorders[job.rid] = recorder
                text = self._text(job.prompt_ids) if job.text is None else job.text
                recorder.prompt(job.prompt_ids, text)
            case Stepped():
                self._write_step(job)
            case Prefilled() if job.rid in self._recorders:
                self._recorders[job.rid].prefill(job.event)
            case Lost() if job.rid in self._recorders:
                self._recorders[job.rid].dropped(job.index, job.index, job.reason)
            case Ended() if job.rid in self._recorders:
                with self._recorders.pop(job.rid) as recorder:
                    recorder.end(job.event)
                self._rotation.finished(recorder.path, {other.path for other in self._recorders.values()})

    def _write_step(self, job: Stepped) -> None:
        try:
            arrays = job.copied.arrays()
            times = job.times_us()
        finally:
            self._ring.free(job.copied.slot)
        for row in job.rows:
            recorder = self._recorders.get(row.rid)
            if recorder is not None and row.emitted is not None:
                own = {name: values[row.at] for name, values in arrays.items()}
                recorder.step(step_of(own, row.facts, row.emitted, row.level, dict(times)))

    def _text(self, ids: list[int]) -> str:
        raw = b"".join(self._token_bytes(token) or b"" for token in ids)
        return raw.decode(errors="replace")

    def _forget(self, job: Job) -> None:
        rids = [row.rid for row in job.rows] if isinstance(job, Stepped) else [job.rid]
        for rid in rids:
            recorder = self._recorders.get(rid)
            if recorder is not None and recorder.closed:
                del self._recorders[rid]
