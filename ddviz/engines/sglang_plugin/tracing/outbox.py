"""A pipe into which a thread writes without ever waiting.

In:  bytes, whole messages.
Out: the same bytes, in order; what the pipe has no room for follows from a thread of its own.
Not here: what is said.

A thread that wrote everything would want Python's lock after every message, in the middle of a step.
"""

import fcntl
import os
import select
import threading
from typing import IO

PIPE_BYTES = 1 << 20  # Linux lets anyone ask for as much


class Outbox:
    def __init__(self, pipe: IO[bytes]) -> None:
        """pipe: the end that is written to; nobody else may use it from now on."""
        self._pipe, self._descriptor = pipe, pipe.fileno()
        os.set_blocking(self._descriptor, False)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:  # a host that allows less
            pass
        self._behind = bytearray()  # what had no room
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._follow, name="ddviz-trace-outbox", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> int:
        """Bytes that are not in the pipe yet."""
        return len(self._behind)

    def send(self, message: bytes) -> None:
        """BrokenPipeError where nobody reads any more."""
        with self._lock:
            rest = message if self._behind else message[self._write(message) :]
            self._behind += rest
        if rest:
            self._wake.set()

    def close(self, timeout: float | None = None) -> None:
        """Until everything is in the pipe; the reader finds its end."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0

    def _follow(self) -> None:
        writable = select.poll()
        writable.register(self._descriptor, select.POLLOUT)  # a broken pipe is told too
        try:
            while not (self._closing and not self._behind):
                self._wake.wait()
                writable.poll()
                with self._lock:
                    del self._behind[: self._write(self._behind)]
                    if not self._behind and not self._closing:
                        self._wake.clear()
            self._pipe.close()
        except BrokenPipeError:  # whoever sends next is told
            self._behind.clear()
