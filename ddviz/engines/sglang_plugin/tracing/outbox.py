"""A pipe into which a thread writes without ever waiting.

In:  bytes, whole messages.
Out: the same bytes, in order, a little later.
Not here: what is said.

A write wakes the reader, which costs the writing thread more than what it says, so messages are written a few
at a time: by the thread that sends them, and by one of the outbox's own where nothing more is sent, or where
the pipe has no room.
"""

import fcntl
import os
import select
import threading
import time
from typing import IO

PIPE_BYTES = 1 << 20  # Linux lets anyone ask for as much
MOST_DELAY_S = 0.03  # of a message, twice at most, while the reader keeps up


class Outbox:
    def __init__(self, pipe: IO[bytes]) -> None:
        """pipe: the end that is written to; nobody else may use it from now on."""
        self._pipe, self._descriptor = pipe, pipe.fileno()
        os.set_blocking(self._descriptor, False)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:  # a host that allows less
            pass
        self._behind = bytearray()
        self._last_write_s = 0.0  # that left nothing behind
        self._is_pipe_full = False  # or was at the last write
        self._lock = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ddviz-trace-outbox", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> int:
        """Bytes that are not in the pipe yet."""
        return len(self._behind)

    def send(self, message: bytes) -> None:
        """BrokenPipeError where nobody reads any more."""
        with self._lock:
            self._behind += message
            self._write_if_due()
            if self._behind and not self._wake.is_set():  # to set it again costs a lock more
                self._wake.set()

    def close(self, timeout: float | None = None) -> None:
        """Until everything is in the pipe; the reader finds its end."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)

    def _write_if_due(self) -> None:
        """BrokenPipeError where nobody reads any more: then there is nothing behind."""
        now = time.monotonic()
        if now - self._last_write_s < MOST_DELAY_S and not self._closing.is_set():
            return
        try:
            del self._behind[: os.write(self._descriptor, self._behind)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._behind.clear()
            self._last_write_s = 0.0  # the next send writes, and is told, at once
            raise
        self._is_pipe_full = bool(self._behind)
        if not self._behind:
            self._last_write_s = now

    def _follow(self) -> None:
        writable = select.poll()
        writable.register(self._descriptor, select.POLLOUT)  # a broken pipe is told too
        try:
            while not (self._closing.is_set() and not self._behind):
                self._wake.wait()
                if not self._is_pipe_full:
                    self._closing.wait(MOST_DELAY_S)
                writable.poll()
                with self._lock:
                    self._write_if_due()
                    if not self._behind and not self._closing.is_set():
                        self._wake.clear()
            self._pipe.close()
        except BrokenPipeError:  # whoever sends next is told
            pass
