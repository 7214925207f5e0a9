"""Which trace files the app may read, each under an opaque id.

In:  the samples folder, the runs folder, the trace folder of a server that others use too, uploaded files.
Out: Entry (id, title, path) for the pickers; `view`, a function of the trace as far as it is written.
Not here: what a view holds (viewer/view.py).

An id that a browser sends is looked up, never turned into a path.
"""

import hashlib
import heapq
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from ddviz.engines.sglang_server.engine import PROBE
from ddviz.errors import DdvizError, TraceError
from ddviz.trace import Trace, TraceFollower, load

MAX_UPLOAD = 512 << 20  # bytes
# Traces kept in memory; of more, the one used longest ago is closed, and read again when asked for.
MIN_OPEN, MAX_OPEN = 8, 64
MAX_OPEN_BYTES = 24 << 20  # of their files, beyond MIN_OPEN; in memory they are 2 to 4 times as large
READ_AT_ONCE = 2 << 20  # bytes of a long file, whose beginning is shown before its end was read
MAX_LISTED = 500  # saved runs offered in the picker
MAX_REQUESTS = 40  # of a server, beside Live
QUIET_S = 60.0  # a request without an end that was not written to for so long counts as cut off
RUN_QUIET_S = 10.0  # likewise a run that another app, or the engine of one that is gone, may be writing
LIVE_S = 2.0  # one that was written to since counts as under way, in the list

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Entry:
    """One trace file that may be opened."""

    id: str
    title: str
    about: str  # one plain-text sentence or none
    path: Path


class Request(NamedTuple):
    """A trace that a server wrote, of whichever client."""

    id: str
    title: str
    live: bool  # it was written to just now


class Registry:
    """Trace files by id. Thread-safe.

    requests  where a server writes the traces of all its clients; None: there is none to watch
    """

    def __init__(self, samples: Path, runs: Path, requests: Path | None = None) -> None:
        self.samples_folder, self.runs_folder, self.requests_folder = samples, runs, requests
        self._lock = threading.Lock()
        self._ids: dict[Path, str] = {}
        self._paths: dict[str, Path] = {}
        self._open: OrderedDict[str, _OpenTrace] = OrderedDict()

    def samples(self) -> list[Entry]:
        """The samples in the order of traces/README.md, those it does not name last."""
        lessons = read_lessons(self.samples_folder / "README.md")
        order = list(lessons)
        paths = sorted(
            _traces_in(self.samples_folder),
            key=lambda path: (order.index(path.stem) if path.stem in lessons else len(order), path.stem),
        )
        return [
            Entry(self.add(path), path.stem.replace("-", " "), lessons.get(path.stem, ""), path)
            for path in paths
        ]

    def saved_runs(self) -> list[Entry]:
        """What Live and `ddviz record` left in the runs folder, and what a server traced, newest first."""
        folders = [folder for folder in (self.runs_folder, self.requests_folder) if folder is not None]
        paths = [f"{folder}/{name}" for folder in folders for name in _names(folder)]
        found = [(written, path) for path in paths if (written := _written(path)) is not None]
        newest = [Path(path) for _, path in heapq.nlargest(MAX_LISTED, found)]
        return [Entry(self.add(path), run_title(path), "", path) for path in newest]

    def requests(self) -> list[Request]:
        """What clients of the server asked last, newest first: a name begins with the time of the request."""
        folder = self.requests_folder
        if folder is None:
            return []
        newest = [folder / name for name in heapq.nlargest(MAX_REQUESTS, _names(folder))]
        found = [(path, written) for path in newest if (written := _written(path)) is not None]
        return [
            Request(self.add(path), run_title(path), _is_near(written, LIVE_S)) for path, written in found
        ]

    def is_growing_request(self, trace_id: str) -> bool:
        """Whether it is a server's trace without an end, written to not long ago."""
        return self._is_growing(trace_id, self.requests_folder, QUIET_S)

    def is_growing_run(self, trace_id: str) -> bool:
        """The same of a saved run, which nobody of this app writes."""
        return self._is_growing(trace_id, self.runs_folder, RUN_QUIET_S)

    def _is_growing(self, trace_id: str, folder: Path | None, quiet: float) -> bool:
        path = self._path_of(trace_id)
        if path is None or folder is None or path.parent != folder.resolve():
            return False
        try:
            if not _is_near(path.stat().st_mtime, quiet):
                return False
            return not self.view(trace_id, lambda trace: trace.end or trace.damage, growing=True)
        except (OSError, TraceError):
            return False  # deleted by the server's limit, say

    def add(self, path: Path) -> str:
        """The id of a file. It keeps it as long as the app runs; in a folder that is listed, for ever."""
        path = path.resolve()
        with self._lock:
            if path not in self._ids:
                is_listed = any(path.parent == folder.resolve() for folder in self._folders().values())
                self._ids[path] = _lasting_id(path) if is_listed else secrets.token_urlsafe(9)
                self._paths[self._ids[path]] = path
            return self._ids[path]

    def _path_of(self, trace_id: str) -> Path | None:
        """The file of an id, also of one that an app before this one gave out; None where there is none."""
        if trace_id not in self._paths:
            for folder in self._folders().values():
                for name in _names(folder):
                    if _lasting_id(folder.resolve() / name) == trace_id:
                        self.add(folder / name)
        return self._paths.get(trace_id)

    def add_upload(self, path: Path) -> str:
        """As `add`. Raises TraceError for a file that is gone, or too large to take in."""
        if not path.is_file():
            raise TraceError("the upload is not here any more; drop the file again")
        if path.stat().st_size > MAX_UPLOAD:
            raise TraceError(
                f"{path.name}: larger than {MAX_UPLOAD >> 20} MiB; read it with: ddviz show FILE"
            )
        return self.add(path)

    def link_of(self, trace_id: str) -> str:
        """What names a trace in a link: sample:NAME, run:NAME, request:NAME; open:ID while the app runs."""
        path = self._paths[trace_id]
        for kind, folder in self._folders().items():
            if path.parent == folder.resolve():
                return f"{kind}:{path.stem}"
        return f"open:{trace_id}"

    def linked(self, link: str) -> str | None:
        """The id of the trace that a link names; None where there is none (any more)."""
        kind, _, name = link.partition(":")
        if kind == "open":
            return name if name in self else None
        folder = self._folders().get(kind)
        names = _names(folder) if folder else []
        return self.add(folder / f"{name}.ddviz") if folder and f"{name}.ddviz" in names else None

    def _folders(self) -> dict[str, Path]:
        folders = {"sample": self.samples_folder, "run": self.runs_folder}
        return folders if self.requests_folder is None else {**folders, "request": self.requests_folder}

    def __contains__(self, trace_id: object) -> bool:
        return isinstance(trace_id, str) and self._path_of(trace_id) is not None

    def view(
        self,
        trace_id: str,
        function: Callable[[Trace], Result],
        growing: bool = False,
        enough: Callable[[Trace], bool] | None = None,
    ) -> Result | None:
        """`function` of the trace as far as it is on disk; None where not even its header is there yet.

        growing  an engine is writing it, so that a cut-off end is no damage
        enough   of a long file no more is read than it takes until this holds; the rest is `trace.unread`

        Raises DdvizError for an id that was never given out, TraceError for a file that is no trace.
        """
        opened = self._opened(trace_id)
        with opened.lock:
            try:
                trace = opened.read(growing, enough)
            except TraceError as error:
                raise TraceError(str(error).replace(str(opened.path), opened.path.name)) from None
            return None if trace is None else function(trace)

    def _opened(self, trace_id: str) -> "_OpenTrace":
        path = self._path_of(trace_id)
        if path is None:
            raise DdvizError("this trace is not open in the app any more; pick it again")
        with self._lock:
            if trace_id not in self._open:
                self._open[trace_id] = _OpenTrace(path)
            self._open.move_to_end(trace_id)
            while self._are_too_many():
                self._open.popitem(last=False)
            return self._open[trace_id]

    def _are_too_many(self) -> bool:
        count = len(self._open)
        return count > MAX_OPEN or (
            count > MIN_OPEN and sum(each.size for each in self._open.values()) > MAX_OPEN_BYTES
        )


class _Version(NamedTuple):
    """What tells a file from the one that stood there before."""

    inode: int
    size: int
    written_ns: int


class _OpenTrace:
    """A follower with its lock. Where nobody writes the file any more, a cut-off end counts as damage.

    A spoilt file that was written to since it was begun with is begun with again: it may be another.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        self._begin(_version(path))

    def _begin(self, version: _Version | None) -> None:
        self._begun = version
        self._follower = TraceFollower(self.path)
        self._whole: tuple[_Version | None, Trace] | None = None  # of a cut-off file, with its damage

    @property
    def size(self) -> int:
        """Bytes of the file that were read."""
        return 0 if self._follower.trace is None else self._follower.trace.size

    def read(self, growing: bool, enough: Callable[[Trace], bool] | None = None) -> Trace | None:
        version = _version(self.path)
        trace = self._read(growing, enough, version)
        damaged = self._follower.trace is not None and self._follower.trace.damage
        if damaged and version not in (None, self._begun):
            self._begin(version)
            trace = self._read(growing, enough, version)
        return trace

    def _read(
        self, growing: bool, enough: Callable[[Trace], bool] | None, version: _Version | None
    ) -> Trace | None:
        trace = self._follower.trace
        while enough is not None and not (trace is not None and enough(trace)):
            self._follower.poll(READ_AT_ONCE)
            trace = self._follower.trace
            if trace is None or not trace.unread:
                break
        if enough is None:
            self._follower.poll()
            trace = self._follower.trace
        if growing or (trace is not None and (trace.unread or not self._follower.torn_bytes())):
            return trace
        if self._whole is None or self._whole[0] != version:
            self._whole = version, load(self.path)
        return self._whole[1]


def read_lessons(readme: Path) -> dict[str, str]:
    """What each sample teaches, by trace name: items of a README that begin with NAME.ddviz, or with several
    names and commas between them, and words after that. An item goes on in lines that are indented.
    """
    if not readme.is_file():
        return {}
    text = re.sub(r"\n[ \t]+(?![-*+|\s])", " ", readme.read_text("utf-8"))
    lessons = {}
    for line in text.splitlines():
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", line)
        if match := re.search(r"([\w.-]+\.ddviz(?:,?\s+(?:and\s+)?[\w.-]+\.ddviz)*)\W+(.*[^\s|])", plain):
            lessons |= dict.fromkeys(re.findall(r"([\w.-]+)\.ddviz", match[1]), match[2])
    return lessons


def run_title(path: Path) -> str:
    """2026-11-29T20-41-07-ddtree-first-words -> 29 Nov 20:41:07 · ddtree first words.

    A server's 20261129-204107-RID -> 29 Nov 20:41:07 · RID.
    """
    for pattern, stamp in (
        (r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)-(.+)", "%Y-%m-%dT%H-%M-%S"),
        (r"(\d{8}-\d{6})-(.+)", "%Y%m%d-%H%M%S"),
    ):
        named = re.fullmatch(pattern, path.stem)
        try:
            when = datetime.strptime(named[1], stamp) if named else None
        except ValueError:
            continue
        if named and when:
            what = named[2].replace("-", " ") if "T" in named[1] else named[2]
            return f"{when:%d %b %H:%M:%S} · {what}"
    return path.stem


def run_name(mode: str, prompt: str, now: datetime) -> str:
    """The file name of a live run: when, how, and the first words of what was asked."""
    words = re.findall(r"[a-z0-9]+", prompt.lower())[:5]
    return "-".join([f"{now:%Y-%m-%dT%H-%M-%S}", mode, "-".join(words)[:40].strip("-") or "prompt"])


def _names(folder: Path) -> list[str]:
    """Of the traces in a folder, no file is looked at; ddviz's own questions to a server left out."""
    try:
        found = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in found if name.endswith(".ddviz") and f"-{PROBE}-" not in name]


def _lasting_id(path: Path) -> str:
    """What a page that stays open over a restart of the app asks for."""
    return hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest()


def _is_near(written: float, seconds: float) -> bool:
    """Whether a time by the clock is at most so far from now; a clock that was set back gives later ones."""
    return abs(time.time() - written) <= seconds


def _version(path: Path) -> _Version | None:
    """None for a file that is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _Version(status.st_ino, status.st_size, status.st_mtime_ns)


def _written(path: Path | str) -> float | None:
    """When a trace was written to last; None for one that was removed, or is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def _traces_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.ddviz") if path.is_file()] if folder.is_dir() else []
