"""The errors a user can meet. Each message says what, where, the values and the remedy, in one sentence.

They are caught once: in `cli.main`, and in the app's wrapper. Anything else that escapes is a bug.
"""


class DdvizError(Exception):
    """Bad user data or a missing part: the message is the whole story, no traceback is wanted."""

    exit_code = 1


class BadValueError(DdvizError):
    """A setting or argument outside its range: misuse."""

    exit_code = 2


class TraceError(DdvizError):
    """A file that is not a readable trace, or a trace that could not be written."""


class EngineError(DdvizError):
    """The engine could not load, or could not run what was asked of it."""
