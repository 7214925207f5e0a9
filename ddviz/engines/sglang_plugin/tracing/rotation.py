"""How much room traces may take: DDVIZ_TRACE_LIMIT, 1M or more, in bytes or with K, M, G or T behind: 2G.

In:  each trace that a writer has finished.
Out: a folder whose traces are together no larger than the limit: the oldest finished ones are deleted.

The trace that has just ended is spared, and those that the server has open: of two servers that share a
folder, one may delete what the other writes; but that is the newest there is, and goes last.
"""

import logging
import os
import re
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

LIMIT = "DDVIZ_TRACE_LIMIT"  # environment
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LEAST = UNITS["M"]  # less is a slip, such as a G forgotten, and would empty the folder
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?", re.ASCII | re.IGNORECASE)

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
        try:
            size = trace.stat().st_size
        except FileNotFoundError:  # another writer, or somebody, was quicker
            return
        folder = trace.parent
        known = self._sizes.get(folder)
        if known is not None:
            self._sizes[folder] = known + self.writers * size
        if known is None or self._sizes[folder] > self.limit:
            self._sizes[folder] = shrink(folder, self.limit, {trace, *being_written})


def shrink(folder: Path, limit: int, spared: Collection[Path]) -> int:
    """Delete the oldest traces until the rest is within the limit; bytes that are left."""
    traces = sorted(_traces(folder))
    left = sum(trace.size for trace in traces)
    for trace in traces:
        if left <= limit:
            break
        if trace.path in spared:
            continue
        try:
            trace.path.unlink(missing_ok=True)  # another writer may have deleted it: it is gone
        except OSError as error:
            logger.warning("ddviz: %s can't be deleted (%s)", trace.path, error.strerror)
        else:
            left -= trace.size
    return left


def limit_of(text: str | None) -> int | None:
    """2G -> 2147483648. Raises ValueError for what is no size or too small."""
    if not text:
        return None
    found = SIZE.fullmatch(text.strip())
    size = int(Decimal(found[1]) * UNITS[(found[2] or "").upper()]) if found else 0
    if size < LEAST:
        raise ValueError(
            f"{LIMIT} is {text!r}, must be 1M or more: bytes, or with K, M, G or T behind, such as 2G"
        )
    return size


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
