"""Writing a trace: `Recorder`, the public way in for any engine, and `NullRecorder`, recording switched off.

In:  events of schema.py, and a function from token id to its raw bytes.
Out: NAME.ddviz, one frame per event, on disk as soon as the call returns.
Not here: what to put into an event: the engine's own buffers, see docs/recorder.md.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddviz.errors import TraceError, WriteError, cant_write
from ddviz.trace.frames import compress_line, new_compressor
from ddviz.trace.schema import AnyEvent, Dropped, End, Header, Prefill, Prompt, Step, Tokens

_encoder = msgspec.json.Encoder()
_POWERS = np.array([float(f"1e{i}") for i in range(23)])  # those that float64 holds exactly


def require_free(path: Path, overwrite: bool) -> None:
    """Raises TraceError where a file is not to be written under this name, as far as one look can tell."""
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name a file, such as {path / 'x.ddviz'}")
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is no regular file (a device or a pipe); choose another name")
    if path.exists() and not overwrite:
        raise TraceError(f"{path}: exists already; choose another name or pass --force")


def float32_list(values: ArrayLike) -> list[float | None]:
    """Floats whose shortest decimals round-trip float32; NaN and infinities become None.

    For what checks replay.
    """
    array = np.asarray(values, np.float32)
    shortest = array.astype(str).astype(np.float64)  # '0.1', not 0.10000000149011612
    return _finite_or_none(array, shortest.tolist())


def float32(value: ArrayLike) -> float | None:
    """One float, as `float32_list`."""
    return float32_list(np.atleast_1d(value))[0]


def display_list(values: ArrayLike, digits: int = 5) -> list[float | None]:
    """Floats cut to `digits` significant digits; NaN and infinities become None. For what is only shown."""
    array = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        exponent = digits - 1 - np.floor(np.log10(np.abs(array)))
        exponent = np.where(np.isfinite(exponent), exponent, 0).astype(np.int64)
        scale = _POWERS[np.minimum(np.abs(exponent), len(_POWERS) - 1)]
        cut = np.where(exponent >= 0, np.round(array * scale) / scale, np.round(array / scale) * scale)
    for i in np.flatnonzero(np.abs(exponent) >= len(_POWERS)):
        cut[i] = float(f"{array[i]:.{digits}g}")
    return _finite_or_none(array, cut.tolist())


def display_rows(values: ArrayLike, digits: int = 5) -> list[list[float | None]]:
    """`display_list` of a matrix."""
    array = np.asarray(values)
    flat = display_list(array.ravel(), digits)
    width = array.shape[1]
    return [flat[i : i + width] for i in range(0, len(flat), width)] if width else [[] for _ in array]


def _finite_or_none(array: NDArray[Any], floats: list[float]) -> list[float | None]:
    out: list[float | None] = list(floats)
    for i in np.flatnonzero(~np.isfinite(array)):
        out[i] = None
    return out


class Recorder:
    """Writes one request's trace. Use as a context manager, or call `close`.

        with Recorder("run.ddviz", header, token_bytes) as rec:
            rec.prompt(ids, text)
            rec.prefill(Prefill(token=first))
            rec.step(Step(...))                 # once per decoding step
            rec.end(End(finish_reason="stop", output_ids=ids, steps=n))

    token_bytes  the raw bytes of a token id, None where it has none (it shows as ⟨id⟩ then); asked once per
                 id, so that no reader needs a tokenizer
    overwrite    False: an existing file is an error
    restore      a file that is removed while it is written, with its folder or alone, is written again, whole

    Raises TraceError where the file can't be made or written (no space, no permission). After a failed write
    the file is cut back to its last whole event and the recorder is closed: what was written stays readable.
    """

    def __init__(
        self,
        path: str | Path,
        header: Header,
        token_bytes: Callable[[int], bytes | None],
        overwrite: bool = False,
        restore: bool = False,
    ) -> None:
        self.path, self._restores = Path(path), restore
        self._token_bytes = token_bytes
        self._known: set[int] = set()
        self._compressor = new_compressor()
        self._stage_us: dict[str, float] = {}
        self._size = 0
        self._lock = threading.Lock()  # the compressor and the file serve one thread at a time
        self._file: IO[bytes] | None = self._open(overwrite)
        self._write(header)

    def _open(self, overwrite: bool) -> IO[bytes]:
        require_free(self.path, overwrite)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return open(self.path, "w+b" if overwrite else "x+b", buffering=0)
        except OSError as error:
            raise cant_write(f"{self.path}: can't write a trace there", error) from None

    def prompt(self, token_ids: list[int], text: str) -> None:
        self._write(Prompt(token_ids=token_ids, text=text), token_ids)

    def prefill(self, prefill: Prefill) -> None:
        self._write(prefill, [prefill.token])

    def step(self, step: Step) -> None:
        """Write a step. Where `step.times_us` is empty, the stages timed since the last step are put in."""
        if not step.times_us:
            step.times_us = {name: round(us, 1) for name, us in self._stage_us.items()}
        self._stage_us.clear()
        self._write(step, _token_ids_of(step))

    def dropped(self, first: int, last: int, reason: str) -> None:
        self._write(Dropped(first=first, last=last, reason=reason))

    def end(self, end: End) -> None:
        self._write(end, end.output_ids)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of the current step; several spans of one name add up."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._stage_us[name] = self._stage_us.get(name, 0.0) + (time.perf_counter() - start) * 1e6

    @property
    def closed(self) -> bool:
        """Nothing more can be written: `close` was called, or a write failed."""
        return self._file is None

    def close(self) -> None:
        """Flush to the disk and close; calling it again does nothing. Raises TraceError as writing does."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise self._write_error(error) from None
            finally:
                file.close()

    def _write(self, event: AnyEvent, token_ids: Iterable[int] = ()) -> None:
        """Append an event and, before it, the bytes of those of its token ids that are new to the trace."""
        with self._lock:
            new = set(token_ids) - self._known
            named = {token: self._token_bytes(token) for token in sorted(new)}
            known = {token: raw for token, raw in named.items() if raw is not None}
            if known or (new and not self._known):  # an empty one says: asked, and there is no text
                self._append(Tokens(bytes=known))
            self._known |= new
            self._append(event)

    def _append(self, event: AnyEvent) -> None:
        if self._file is None:
            raise TraceError(f"{self.path}: the trace is closed already")
        frame = compress_line(_encoder.encode(event), self._compressor)
        try:
            if self._restores and os.fstat(self._file.fileno()).st_nlink == 0:
                self._restore()
            written = 0
            while written < len(frame):  # a raw file may take less than it was given
                written += self._file.write(frame[written:]) or 0
        except OSError as error:
            self._give_up()
            raise self._write_error(error) from None
        self._size += len(frame)

    def _restore(self) -> None:
        """The file is gone, but not what was written to it, as long as it is open. Raises OSError."""
        assert self._file is not None
        part = self.path.with_name(f".{self.path.name}.part")  # readers are to see it whole
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(os.pread(self._file.fileno(), self._size, 0))
            if self.path.exists():
                raise FileExistsError(errno.EEXIST, "another file has its name now")
            part.rename(self.path)
        finally:
            part.unlink(missing_ok=True)
        self._file.close()
        self._file = self._open_again()

    def _open_again(self) -> IO[bytes]:
        return open(self.path, "a+b", buffering=0)

    def _write_error(self, error: OSError) -> TraceError:
        return WriteError(
            f"{self.path}: the trace could not be written ({error.strerror}); "
            "its whole steps are kept; free some space or choose another folder"
        )

    def _give_up(self) -> None:
        """Cut a half-written frame off and close, so that the file stays a good trace."""
        file, self._file = self._file, None
        assert file is not None
        try:
            file.truncate(self._size)
        except OSError:
            pass  # the reader copes with a torn last frame
        file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class NullRecorder:
    """Recording switched off: the same calls, nothing done. Keeps stage times out of the step's way too."""

    path: Path | None = None

    def prompt(self, token_ids: list[int], text: str) -> None: ...
    def prefill(self, prefill: Prefill) -> None: ...
    def step(self, step: Step) -> None: ...
    def dropped(self, first: int, last: int, reason: str) -> None: ...
    def end(self, end: End) -> None: ...
    def close(self) -> None: ...

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def _token_ids_of(step: Step) -> set[int]:
    """Every token id that a step names."""
    ids = {step.accept.bonus, *step.tree.tokens, *step.emitted, *step.accept.predicts}
    if step.draft is not None:
        ids.update(*step.draft.top_ids)
    if step.target is not None:
        ids.update(step.target.raw.argmax, *step.target.raw.top_ids)
        if step.target.filtered is not None:
            ids.update(*(step.target.filtered.top_ids or []))
    return ids
