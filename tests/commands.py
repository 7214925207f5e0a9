"""A command as a user types it, in this process or in one of its own; its exit code and what it printed."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from ddviz.cli import main

ROOT = Path(__file__).parents[1]


def ddviz(*args: object) -> "subprocess.CompletedProcess[str]":
    """In this process, since one of its own takes seconds to import torch."""
    argv, out, err = [os.fsdecode(word) for word in _words(args)], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(ROOT):
        try:
            code = main(argv)
        except SystemExit as end:  # argparse: misuse, --help, --version
            code = int(end.code or 0)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def typed(*args: object) -> "subprocess.CompletedProcess[str]":
    """In a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ddviz.cli", *_words(args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )


def _words(args: tuple[object, ...]) -> list[str | bytes]:
    return [word if isinstance(word, bytes) else str(word) for word in args]
