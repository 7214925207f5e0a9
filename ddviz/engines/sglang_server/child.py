"""A server as a child process: its command, its log, its end.

In:  a command line, an environment.
Out: lines of its log, how far it has loaded, one call when it has ended.
Not here: what is asked of it (engine.py), who ends it when the app dies (keeper.py).
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

KEPT_LINES = 400
LONGEST_LINE = 2000  # characters
GRACE_S = 15.0  # between SIGTERM and SIGKILL

# What SGLang prints as it loads: a pattern, what is going on from there, how far it is. A number in the
# pattern is the percentage of the way to the next line.
STAGES: tuple[tuple[str, str, float], ...] = (
    (r"server_args=", "starting its processes", 0.05),
    (r"Load weight begin", "loading the weights", 0.10),
    (r"checkpoint shards:\s+(\d+)%", "loading the weights", 0.15),
    (r"Load weight end", "loading the weights", 0.45),
    (r"Cache is allocated", "allocating the KV cache", 0.50),
    (r"Capture .*begin", "capturing CUDA graphs", 0.55),
    (r"Capturing \w+.*?(\d+)%", "capturing CUDA graphs", 0.60),
    (r"Capture .*end", "capturing CUDA graphs", 0.80),
    (r"Uvicorn running|Application startup complete", "waiting for its first answer", 0.90),
    (r"fired up and ready", "waiting for its first answer", 0.95),
)


class Progress(NamedTuple):
    doing: str
    fraction: float


class Child:
    """One server process under its keeper."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_progress: Callable[["Child", Progress], None],
        on_end: Callable[["Child"], None],
        grace_s: float = GRACE_S,
    ) -> None:
        self._grace_s = grace_s
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._progress = Progress("starting", 0.0)
        self._on_progress, self._on_end = on_progress, on_end
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "ddviz.engines.sglang_server.keeper", str(grace_s), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,  # a Ctrl-C in the terminal is for the app, which then ends the server
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def log(self) -> list[str]:
        return list(self._lines)

    def is_running(self) -> bool:
        return self._keeper.poll() is None

    def end(self) -> None:
        """End the server and wait until it is gone."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(self._grace_s + 10)

    def fate(self) -> str:
        """How it ended: exited with code 1, was killed by SIGKILL."""
        code = self._keeper.wait()
        if code > 128 and code - 128 in set(signal.Signals):
            return f"was killed by {signal.Signals(code - 128).name}"
        return f"ended with exit code {code}"

    def _watch(self) -> None:
        assert self._keeper.stdout is not None
        # universal newlines: a progress bar ends its lines with a carriage return
        with open(self._keeper.stdout.fileno(), encoding="utf-8", errors="replace", closefd=False) as log:
            for line in log:
                if line.strip():
                    self._take(line.rstrip()[:LONGEST_LINE])
        self._keeper.wait()
        self._on_end(self)

    def _take(self, line: str) -> None:
        self._lines.append(line)
        progress = progress_of(line)
        if progress is not None and progress.fraction > self._progress.fraction:
            self._progress = progress
            self._on_progress(self, progress)


def progress_of(line: str) -> Progress | None:
    """How far a server is that prints this line; None for a line that says nothing of it."""
    for at, (pattern, doing, fraction) in enumerate(STAGES):
        found = re.search(pattern, line)
        if found is None:
            continue
        if found.groups():
            fraction += (STAGES[at + 1][2] - fraction) * int(found[1]) / 100
        return Progress(doing, fraction)
    return None
