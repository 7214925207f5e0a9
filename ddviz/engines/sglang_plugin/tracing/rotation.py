"""How much room traces may take: DDVIZ_TRACE_LIMIT, in bytes, or with K, M, G or T behind: 2G.

In:  each trace that a writer has finished.
Out: a folder whose traces are together no larger than the limit: the oldest finished ones are deleted.

Traces that the server has open are spared: of two servers that share a folder, one may delete what the
other writes; but that is the newest there is, and goes last.
"""

import logging
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

LIMIT = "DDVIZ_TRACE_LIMIT"  # environment
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

logger = logging.getLogger(__name__)


class Rotation:
    """Of the folders that one process writes traces into, from one thread."""

    def __init__(self, limit: int | None, writers: int = 1) -> None:
        """limit: bytes, None = any. writers: processes that write there, each as much as this one."""
        self.limit, self.writers = limit, writers
        self._sizes: dict[Path, int] = {}  # of each folder, an estimate between two looks

    def finished(self, trace: Path, being_written: Collection[Path]) -> None:
        """A trace was closed. The folder is looked through the first time, and when it is full."""
        if self.limit is None:
            return
        folder = trace.parent
        known = self._sizes.get(folder)
        if known is not None:
            self._sizes[folder] = known + self.writers * trace.stat().st_size
        if known is None or self._sizes[folder] > self.limit:
            self._sizes[folder] = shrink(folder, self.limit, being_written)


def shrink(folder: Path, limit: int, being_written: Collection[Path]) -> int:
    """Delete the oldest traces until the rest is within the limit; bytes that are left."""
    traces = sorted(_traces(folder))
    left = sum(trace.size for trace in traces)
    for trace in traces:
        if left <= limit:
            break
        if trace.path in being_written:
            continue
        try:
            trace.path.unlink()
        except OSError as error:
            logger.warning("ddviz: %s can't be deleted (%s)", trace.path, error.strerror)
        else:
            left -= trace.size
    return left


def limit_of(text: str | None) -> int | None:
    """2G -> 2147483648. Raises ValueError for what is no size."""
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise ValueError(
            f"{LIMIT} is {text!r}, must be bytes, or a number above 0 with K, M, G or T behind, such as 2G"
        )
    return int(float(found[1]) * UNITS[found[2].upper()])


def rotation(writers: int = 1) -> Rotation:
    """As the environment has it."""
    return Rotation(limit_of(os.environ.get(LIMIT)), writers)


class _Trace(NamedTuple):
    written: int  # ns; first, so that the oldest sorts first
    path: Path
    size: int


def _traces(folder: Path) -> list[_Trace]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".ddviz"):
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since
                found.append(_Trace(status.st_mtime_ns, Path(entry.path), status.st_size))
    return found
