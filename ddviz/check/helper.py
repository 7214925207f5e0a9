"""A process that examines a part of a long trace, beside the one that asks it to.

In:  on stdin, once: (header, names of rules, lines of steps).
Out: on stdout: what was found, as Examination.join takes it; nothing where a line is no step.
Not here: the examination itself (doctor.py).

It is a program of its own (`python -m ddviz.check.helper`), so that it neither shares the memory of an app
with threads nor runs its main module again.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Self

import msgspec

from ddviz.trace.reader import decode_step
from ddviz.trace.schema import Header

MOST = 8  # processes at once
Request = tuple[Header, list[str] | None, list[bytes]]


class Helpers:
    """A few of these processes. They start while the caller reads its trace. Use as a context manager."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-m", "ddviz.check.helper"]
        self._children = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._children)

    def ask(self, place: int, header: Header, rules: list[str] | None, lines: Sequence[bytes]) -> None:
        stdin = self._children[place].stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.msgpack.encode((header, rules, lines)))
            stdin.close()
        except BrokenPipeError:
            pass  # it died; `answer` says so

    def answer(self, place: int) -> bytes:
        """What `ask` led to; nothing where it failed."""
        stdout = self._children[place].stdout
        assert stdout is not None
        return stdout.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                try:
                    if pipe is not None:
                        pipe.close()
                except BrokenPipeError:
                    pass
            child.kill()
            child.wait()


def cores() -> int:
    """How many processes can work at once here."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST, known or 1)


def main() -> None:
    from ddviz.check.doctor import Examination

    asked = sys.stdin.buffer.read()
    if not asked:  # the caller needs no help
        return
    header, rules, lines = msgspec.msgpack.decode(asked, type=Request)
    examination = Examination(header, rules)
    examination.take(decode_step(line) for line in lines)
    sys.stdout.buffer.write(examination.result())


if __name__ == "__main__":
    main()
