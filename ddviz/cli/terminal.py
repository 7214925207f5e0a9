"""What a command tells on stderr while it works, and how it hears SIGINT and SIGTERM.

In:  sentences and how far they are; signals.
Out: one line written over on a terminal, a line per sentence elsewhere; a Control that is told to stop.
Not here: results, which go to stdout (the commands).
"""

import signal
import sys
from types import FrameType
from typing import Any, Self

from ddviz.engines.base import Control


class Progress:
    """How far a command is. Use as a context manager: what comes after it begins on a new line.

    On a terminal a sentence's detail is written over in place. Elsewhere (a file, a pipe) there is nothing to
    write over: each sentence is told once, without details.
    """

    def __init__(self) -> None:
        self._over = sys.stderr.isatty()
        self._sentence = ""

    def __call__(self, sentence: str, detail: str = "") -> None:
        new, open_line = sentence != self._sentence, bool(self._sentence)
        self._sentence = sentence
        if self._over:
            lead = "\n" if new and open_line else "\r"
            print(f"{lead}{sentence} {detail}\x1b[K", end="", file=sys.stderr, flush=True)
        elif new:
            print(sentence, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._over and self._sentence:
            print(file=sys.stderr, flush=True)


class Signals:
    """SIGINT and SIGTERM for a command that records: the run ends between two steps, its trace is closed.

    Without a `control` (nothing runs yet) and at a second signal, KeyboardInterrupt(number) is raised.
    """

    def __init__(self) -> None:
        self.control: Control | None = None
        self._heard: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """As shells have it: 128 + the number of the signal that came, or 0."""
        return 0 if self._heard is None else 128 + self._heard

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again, self._heard = self._heard is not None, number
        if again or self.control is None:
            raise KeyboardInterrupt(number)
        self.control.stop()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
