"""A request's trace, copied event by event from where a server writes it to where the app wants it.

In:  the server's trace folder, the id of a request.
Out: the same trace under another name, as far as it has been let through.
Not here: when an event may pass (engine.py).

The copy makes a server's run a run like any other: it is where Live's runs are, it stays when the server's
folder is rotated, and a view that is paused is a copy that waits. The server's file is opened once, so that
what it deletes meanwhile is still read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Self

import msgspec

from ddviz.errors import TraceError, WriteError, cant_write
from ddviz.trace.frames import DamageError, decompress_frame, next_frame


class Event(NamedTuple):
    kind: str  # its tag in the trace's schema
    frame: bytes


class _Tag(msgspec.Struct):
    event: str = ""


class TraceCopy:
    """Yields a server's events as they come; `keep` writes one to `target`. A context manager."""

    def __init__(self, folder: Path, rid: str, target: Path) -> None:
        self.target = target
        self.source: Path | None = None  # once the server has begun it
        self.is_whole = False  # kept to its end
        self._folder, self._ending = folder, f"-{rid}.ddviz"
        self._looked_at: int | None = None  # when the folder changed last, as of the last look
        self._reading: IO[bytes] | None = None
        self._tail = b""  # bytes of an event that is not whole yet
        self._file: IO[bytes] | None = None

    def new_events(self) -> Iterator[Event]:
        """Those written since the last call. Raises TraceError where the server's file is damaged or can't be
        read.
        """
        source = self._find()
        if source is None:
            return
        try:
            if self._reading is None:
                self._reading = open(source, "rb")  # noqa: SIM115, closed by __exit__
            self._tail += self._reading.read()
        except OSError as error:
            raise unreadable(source, error) from None
        try:
            while self._tail:
                frame = next_frame(self._tail, 0)
                line = decompress_frame(self._tail, frame)
                raw, self._tail = self._tail[: frame.size], self._tail[frame.size :]
                yield Event(msgspec.json.decode(line, type=_Tag).event, raw)
        except DamageError as damage:
            if not damage.torn:
                raise TraceError(f"{source}: the server's trace is damaged: {damage.reason}") from None

    def keep(self, event: Event) -> None:
        """Raises TraceError where the copy can't be written."""
        try:
            if self._file is None:
                self.target.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.target, "xb", buffering=0)  # noqa: SIM115, closed by __exit__
            self._file.write(event.frame)
            self.is_whole = event.kind == "end"
        except OSError as error:
            if self._file is None:
                raise cant_write(f"{self.target}: can't write a trace there", error) from None
            raise WriteError(
                f"{self.target}: the trace could not be written ({error.strerror}); "
                "free some space or choose another folder"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for file in (self._file, self._reading):
            if file is not None:
                file.close()

    def _find(self) -> Path | None:
        if self.source is None and self._folder.is_dir():
            changed = self._folder.stat().st_mtime_ns
            if changed != self._looked_at:
                self.source = find_trace(self._folder, self._ending)
                self._looked_at = changed
        return self.source


def find_trace(folder: Path, ending: str) -> Path | None:
    """The file whose name ends so: the plugin puts the time before a request's id. Raises TraceError."""
    try:
        return next((path for path in folder.iterdir() if path.name.endswith(ending)), None)
    except OSError as error:
        raise unreadable(folder, error) from None


def unreadable(path: Path, error: OSError) -> TraceError:
    hint = "; let the user that runs ddviz read it" if isinstance(error, PermissionError) else ""
    return TraceError(f"{path}: can't read the server's traces there ({error.strerror}){hint}")
