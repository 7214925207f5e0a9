"""The errors a user can meet. Each message says what, where, the values and the remedy, in one sentence.

They are caught once: in `cli.main`, and in the app's wrapper. Anything else that escapes is a bug.

Exit codes, one rule: 2 where what was typed can't be right (a value, an option, the name of a file, folder,
device or model), so that another command line is the remedy; 1 where the command line may stay as it is and
something else failed (a taken port, a full disk, no network, an engine that died).
"""

import errno

_DISK_FAILS = {errno.ENOSPC, errno.EDQUOT, errno.EIO}


class DdvizError(Exception):
    """Bad user data or a missing part: the message is the whole story, no traceback is wanted."""

    exit_code = 1


class BadValueError(DdvizError):
    """A setting or argument outside its range: misuse."""

    exit_code = 2


class TraceError(DdvizError):
    """A file that was named and is no readable trace, or a name that no file can have: misuse."""

    exit_code = 2


class WriteError(TraceError):
    """A file that could not be written to its end, under a name that was right."""

    exit_code = 1


class EngineError(DdvizError):
    """The engine could not load, or could not run what was asked of it."""


class RefusedError(EngineError):
    """What was asked of the engine can't be had: no such device or model, a prompt too long. Misuse."""

    exit_code = 2


def counted(number: int, words: str) -> str:
    """1 whole step, 2 whole steps."""
    return f"{number} {words}{'' if number == 1 else 's'}"


def cant_write(sentence: str, error: OSError) -> TraceError:
    """The error for a file or folder that can't be made: the disk's fault, or that of the name."""
    return (WriteError if error.errno in _DISK_FAILS else TraceError)(f"{sentence} ({error.strerror})")


def visible(text: str) -> str:
    """What a terminal could obey, by number: names of files and a trace's text come from anywhere."""
    return "".join(c if c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in text)
