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
ENDED_KEPT = 64  # requests that ended, whose status is remembered
RUNS_AT_ONCE = 8  # requests that run in turns: each has KV of its own, and each slows the others down
# Threads that wait sleep instead of spinning: a page that watches needs the cores too (docs/benchmarks.md).
CALM = {"OMP_WAIT_POLICY": "PASSIVE"}


class EngineProcess:
    """A `SharedEngine` in a child process. Starts at once; no call waits for the engine's work."""

    runs_at_once = RUNS_AT_ONCE

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self._lock = threading.Lock()
        self._restarting = threading.Lock()
        self._start()

    def status(self) -> EngineStatus:
        with self._lock:
            return self._status_of(self._last)

    def status_of(self, trace: Path | None) -> EngineStatus:
        """Where it stands for one who asked for this trace, or for nothing yet: others' runs don't show."""
        with self._lock:
            return self._status_of(None if trace is None else str(trace))

    def runs(self) -> list[Path]:
        """The traces of the requests under way, oldest first."""
        with self._lock:
            return [Path(trace) for trace in self._under_way()]

    def generate(self, params: GenerateParams, trace: Path) -> None:
        """Begin a request.

        Raises DdvizError for values that make no sense, EngineError where the engine is not ready.
        """
        params.checked()
        name = str(trace)
        with self._lock:
            status, under_way = self._status, self._under_way()
            if status.state != "ready":
                raise EngineError(f"the engine can't take a request now: {status.message or status.state}")
            if name in under_way:
                raise EngineError(f"the engine can't take a request now: it writes {name} already")
            if len(under_way) >= self.runs_at_once:
                raise EngineError(
                    f"the engine can't take a request now: it runs {len(under_way)} already, "
                    "as many as it takes; wait for one to end, or stop it"
                )
            ended = [trace for trace in self._requests if trace not in under_way]
            for trace_of_old in ended[:-ENDED_KEPT]:
                del self._requests[trace_of_old]
            self._requests.pop(name, None)
            self._requests[name] = msgspec.structs.replace(
                status, state="prefill", message="reading the prompt", trace=name, error=None
            )
            self._last = name
        self._send({"do": "generate", "params": params, "trace": name})

    def pause(self, trace: Path | None = None) -> None:
        self._tell("pause", trace)

    def resume(self, trace: Path | None = None) -> None:
        self._tell("resume", trace)

    def step(self, trace: Path | None = None) -> None:
        self._tell("step", trace)

    def stop(self, trace: Path | None = None) -> None:
        self._tell("stop", trace)

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
            self._status = EngineStatus(state="starting", message="starting the engine")  # of the engine
            self._requests: dict[str, EngineStatus] = {}  # by trace, oldest first
            self._last: str | None = None  # the trace of the request that began last
        log = threading.Thread(target=self._read_log, args=(child, lines), daemon=True)
        log.start()
        threading.Thread(target=self._read_status, args=(child, log), daemon=True).start()

    def _status_of(self, trace: str | None) -> EngineStatus:
        """Of a request, as long as the engine lives; the lock is held."""
        known = self._requests.get(trace) if trace is not None else None
        if known is None:
            return self._status
        if self._status.state != "ready":  # it is gone
            return msgspec.structs.replace(self._status, trace=trace)
        return msgspec.structs.replace(known, model=self._status.model)

    def _under_way(self) -> list[str]:
        if self._status.state != "ready":
            return []  # they ended with the child
        return [trace for trace, status in self._requests.items() if status.state in BUSY]

    def _tell(self, word: str, trace: Path | None) -> None:
        name = self._last if trace is None else str(trace)
        if name is not None:
            self._send({"do": word, "trace": name})

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
                if child is not self._child:
                    continue
                if status.trace is None:
                    self._status = status
                else:
                    self._requests[status.trace] = status
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
