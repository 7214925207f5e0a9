"""A gate before each decoding step, so that the app can let a server that it started run single steps.

In:  DDVIZ_GATE, a folder. Its file `open_for` holds "ROUND STEPS": so many steps may begin in this round, one
     that began when the app closed the gate. No such file: the gate is open.
Out: the file `waiting`, with the same words, once all of them were taken and the next one waits.
Not here: who opens and closes it (engines/sglang_server/gatekeeper.py).

A step that waits holds the scheduler's loop, which then hears nothing: for one user's server on its own
machine, with overlap scheduling off, where a step that has begun is the only one under way. Every rank of
tensor parallelism counts for itself, and all take the same steps.
"""

import os
import time
from pathlib import Path

FOLDER = "DDVIZ_GATE"  # environment
POLL_S = 0.005


class Gate:
    """One process's gate. An open one costs a look for a file that is not there: microseconds."""

    def __init__(self, folder: Path) -> None:
        self._open_for, self._waiting = folder / "open_for", folder / "waiting"
        self._round = ""
        self._taken = 0  # steps of this round

    def pass_through(self) -> None:
        """Return when the next step may begin."""
        told = ""
        while (words := self._words()) is not None:
            name, steps = words.split()
            if name != self._round:
                self._round, self._taken = name, 0
            if self._taken < int(steps):
                self._taken += 1
                return
            if told != words:
                self._waiting.write_text(words)
                told = words
            time.sleep(POLL_S)

    def _words(self) -> str | None:
        try:
            return self._open_for.read_text()
        except FileNotFoundError:
            return None


def pass_through() -> None:
    """Call it as a decoding step begins. Does nothing on a server that has no gate."""
    if _gate is not None:
        _gate.pass_through()


_gate = Gate(Path(os.environ[FOLDER])) if os.environ.get(FOLDER) else None
