"""The app's side of the gate before a server's decoding steps (sglang_plugin/gate.py has the protocol).

In:  how many steps may run.
Out: the file that the server looks for; whether it waits.
"""

import itertools
import os
from pathlib import Path


class Gatekeeper:
    """The gate is open until `allow` closes it for all steps but one, and again after `open`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open_for, self._waiting = folder / "open_for", folder / "waiting"
        self._rounds = itertools.count(1)
        self._round: int | None = None  # None: open
        self._steps = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.open()

    def allow(self) -> None:
        """Let one more step run, then hold the next."""
        if self._round is None:
            self._round, self._steps = next(self._rounds), 0
        self._steps += 1
        draft = self.folder / "open_for.new"
        draft.write_text(self._words())
        os.replace(draft, self._open_for)  # at once: the server never sees half a word

    def open(self) -> None:
        self._round = None
        self._open_for.unlink(missing_ok=True)
        self._waiting.unlink(missing_ok=True)

    @property
    def is_closed(self) -> bool:
        return self._round is not None

    @property
    def holds(self) -> bool:
        """Whether the server has taken every step that it was allowed, and waits before the next."""
        try:
            return self._round is not None and self._waiting.read_text() == self._words()
        except FileNotFoundError:
            return False

    def _words(self) -> str:
        return f"{self._round} {self._steps}"
