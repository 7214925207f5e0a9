"""The embedded engine as a child process: start it, tell it what to do, know where it stands.

In:  EngineOptions and the calls of the `Engine` protocol.
Out: EngineStatus; traces, which the child writes by itself.
Not here: the child (torch_engine/__main__.py).

App and engine survive each other: the child finishes its trace when this process dies, and when the child
dies, `status` says so with the last lines of its log, and `restart` starts another.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import msgspec

from ddviz.engines.base import BUSY, EngineOptions, EngineStatus, GenerateParams
from ddviz.errors import EngineError

LOG_LINES = 12
# Threads that wait sleep instead of spinning: a page that watches needs the cores too (docs/benchmarks.md).
CALM = {"OMP_WAIT_POLICY": "PASSIVE"}


class EngineProcess:
    """An `Engine` in a child process. Starts at once; none of its calls waits for the engine's work."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self._lock = threading.Lock()
        self._restarting = threading.Lock()
        self._start()

    def status(self) -> EngineStatus:
        return self._status

    def generate(self, params: GenerateParams, trace: Path) -> None:
        """Begin a request.

        Raises DdvizError for values that make no sense, EngineError where the engine is not ready.
        """
        params.checked()
        with self._lock:
            status = self._status
            if status.state != "ready":
                reason = (
                    "it runs a request already" if status.state in BUSY else status.message or status.state
                )
                raise EngineError(f"the engine can't take a request now: {reason}")
            self._status = msgspec.structs.replace(
                status, state="prefill", message="reading the prompt", trace=str(trace), error=None
            )
        self._send({"do": "generate", "params": params, "trace": str(trace)})

    def pause(self) -> None:
        self._send({"do": "pause"})

    def resume(self) -> None:
        self._send({"do": "resume"})

    def step(self) -> None:
        self._send({"do": "step"})

    def stop(self) -> None:
        self._send({"do": "stop"})

    def restart(self) -> None:
        """Kill the child and start another. A second call while one is under way does nothing."""
        if self._restarting.acquire(blocking=False):
            try:
                self.close(kill=True)
                self._start()
            finally:
                self._restarting.release()

    def close(self, kill: bool = False) -> None:
        """End the child: a running request is finished by itself, unless `kill`."""
        child = self._child
        if kill:
            child.kill()
        if child.stdin and not child.stdin.closed:
            try:
                child.stdin.close()
            except BrokenPipeError:
                pass
        if kill:
            child.wait()

    def log(self) -> list[str]:
        """The last lines that the child printed."""
        return list(self._log)

    def _start(self) -> None:
        child = subprocess.Popen(
            [sys.executable, "-m", "ddviz.engines.torch_engine", msgspec.json.encode(self.options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=CALM | os.environ,
            start_new_session=True,  # a Ctrl-C in the terminal is for the app, which then closes stdin
        )
        lines: deque[str] = deque(maxlen=LOG_LINES)
        # together: a reader of the child before must not mistake this one's status for its own
        with self._lock:
            self._child, self._log = child, lines
            self._status = EngineStatus(state="starting", message="starting the engine")
        log = threading.Thread(target=self._read_log, args=(child, lines), daemon=True)
        log.start()
        threading.Thread(target=self._read_status, args=(child, log), daemon=True).start()

    def _send(self, command: dict[str, object]) -> None:
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(msgspec.json.encode(command) + b"\n")
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # the child is gone: its status says so

    def _read_status(self, child: subprocess.Popen[bytes], log: threading.Thread) -> None:
        decoder = msgspec.json.Decoder(EngineStatus)
        assert child.stdout is not None
        for line in child.stdout:
            try:
                status = decoder.decode(line)
            except msgspec.MsgspecError:
                self._log.append(line.decode(errors="replace").rstrip())  # something printed to stdout
                continue
            with self._lock:
                if child is self._child:
                    self._status = status
        code = child.wait()
        log.join(timeout=2)  # its last words are in
        with self._lock:
            if child is self._child and self._status.state != "failed":
                self._status = msgspec.structs.replace(
                    self._status, state="off", progress=None, message=self._obituary(code)
                )

    def _obituary(self, code: int) -> str:
        if code == 0:
            return "the engine was closed"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "\n".join(
            [f"the engine {how}; the trace it was writing is kept; restart it to go on", *self._log]
        )

    def _read_log(self, child: subprocess.Popen[bytes], log: deque[str]) -> None:
        assert child.stderr is not None
        for line in child.stderr:
            log.append(line.decode(errors="replace").rstrip())
