"""From jobs to trace files, in a process of its own (process.py), where it costs the scheduler nothing.

In:  jobs, in the order in which the scheduler's results came; the slots with the steps' arrays.
Out: one NAME.ddviz a request, every event on disk when it was written.
Not here: which requests are traced, what a step holds.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ddviz.engines.sglang_plugin.tracing.jobs import (
    Array,
    Begin,
    Ended,
    Job,
    Layout,
    Lost,
    Prefilled,
    Row,
    Stepped,
)
from ddviz.engines.sglang_plugin.tracing.rotation import rotation
from ddviz.engines.sglang_plugin.tracing.slots import Slots
from ddviz.engines.sglang_plugin.tracing.steps import Lists, rows_of, step_of
from ddviz.errors import TraceError
from ddviz.trace.writer import Recorder

OTHER_TURN = "its place in the ring held another step"
NOT_WRITTEN = "it could not be written: the server's log has the error"

logger = logging.getLogger(__name__)


class TraceWriter:
    """Does each job as it is `put`. `close` ends what is open."""

    def __init__(self, slots: Slots, token_bytes: Callable[[int], bytes | None], reader: int = 0) -> None:
        """reader: which of the readers of the slots this is; each has requests of its own."""
        self._slots, self._token_bytes, self._reader = slots, token_bytes, reader
        self._recorders: dict[str, Recorder] = {}
        self._rotation = rotation(slots.readers)

    def put(self, job: Job) -> None:
        with self._guarded(None if isinstance(job, Stepped) else job.rid):  # a step's rows are, one by one
            self._do(job)

    def close(self, timeout: float | None = None) -> None:
        for recorder in self._recorders.values():
            recorder.close()

    def _do(self, job: Job) -> None:
        match job:
            case Begin():
                recorder = Recorder(Path(job.path), job.header, self._token_bytes)
                self._recorders[job.rid] = recorder
                recorder.prompt(job.prompt_ids, self._text(job.prompt_ids))
            case Stepped():
                self._write_step(job)
            case Prefilled() if job.rid in self._recorders:
                self._recorders[job.rid].prefill(job.event)
            case Lost() if job.rid in self._recorders:
                self._recorders[job.rid].dropped(job.index, job.index, job.reason)
            case Ended() if job.rid in self._recorders:
                with self._recorders.pop(job.rid) as recorder:
                    recorder.end(job.event)
                self._rotation.finished(recorder.path, {*map(Path, job.being_written), *self._open_paths()})

    def _write_step(self, job: Stepped) -> None:
        try:
            layout = layout_of(bytes(job.layout))
            raw = self._slots.read(job.turn, layout.size)
        finally:
            self._slots.free(job.turn, self._reader)
        rows = [row for row in job.rows if row.rid in self._recorders]
        whole, own = [row.facts.row for row in rows], [row.at for row in rows]
        arrays, at = {}, 0
        for array in layout.arrays:
            values = np.frombuffer(raw, array.dtype, math.prod(array.shape), at).reshape(array.shape)
            arrays[array.name] = values[whole if array.whole else own]
            at += array.size
        if (arrays.pop("turn", job.turn) != np.int64(job.turn)).any():  # as the device counted
            logger.error("ddviz: a step was lost: %s", OTHER_TURN)
            for row in rows:
                with self._guarded(row.rid):
                    self._drop(row, OTHER_TURN)
            return
        for row, lists in zip(rows, rows_of(arrays), strict=True):
            with self._guarded(row.rid):
                self._write_row(row, lists, dict(job.times_us))

    def _write_row(self, row: Row, lists: Lists, times_us: dict[str, float]) -> None:
        try:
            step = step_of(lists, row.facts, row.emitted, row.level, times_us)
            self._recorders[row.rid].step(step)
        except TraceError:
            raise
        except Exception:
            logger.exception("ddviz: a step was lost")
            self._drop(row, NOT_WRITTEN)

    def _drop(self, row: Row, reason: str) -> None:
        self._recorders[row.rid].dropped(row.facts.index, row.facts.index, reason)

    def _open_paths(self) -> list[Path]:
        return [recorder.path for recorder in self._recorders.values()]

    def _text(self, ids: list[int]) -> str:
        raw = b"".join(self._token_bytes(token) or b"" for token in ids)
        return raw.decode(errors="replace")

    @contextmanager
    def _guarded(self, rid: str | None) -> Iterator[None]:
        """No error leaves it: one trace could not be written and is forgotten, the others go on."""
        try:
            yield
        except TraceError as error:
            logger.error("ddviz: %s", error)
            if rid in self._recorders and self._recorders[rid].closed:
                del self._recorders[rid]
        except Exception:
            logger.exception("ddviz: a trace event was lost")


@functools.lru_cache(maxsize=1024)
def layout_of(encoded: bytes) -> Layout:
    return Layout.of(msgspec.msgpack.decode(encoded, type=tuple[Array, ...]))
