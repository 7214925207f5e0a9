"""Which trace files the app may read, each under an opaque id.

In:  the samples folder, the runs folder, uploaded files.
Out: Entry (id, title, path) for the pickers; `view`, a function of the trace as far as it is written.
Not here: what a view holds (viewer/view.py).

An id that a browser sends is looked up, never turned into a path.
"""

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from ddviz.errors import DdvizError, TraceError
from ddviz.trace import Trace, TraceFollower, load

MAX_UPLOAD = 512 << 20  # bytes
MAX_OPEN = 8  # traces kept in memory; the one used longest ago is closed and read again when asked for
MAX_LISTED = 500  # saved runs offered in the picker

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Entry:
    """One trace file that may be opened."""

    id: str
    title: str
    about: str  # one plain-text sentence or none
    path: Path


class Registry:
    """Trace files by id. Thread-safe."""

    def __init__(self, samples: Path, runs: Path) -> None:
        self.samples_folder, self.runs_folder = samples, runs
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
        """What Live and `ddviz record` left in the runs folder, newest first."""
        newest = sorted(_traces_in(self.runs_folder), key=_modified, reverse=True)
        return [Entry(self.add(path), run_title(path), "", path) for path in newest[:MAX_LISTED]]

    def add(self, path: Path) -> str:
        """The id of a file; the same file keeps its id as long as the app runs."""
        path = path.resolve()
        with self._lock:
            if path not in self._ids:
                self._ids[path] = secrets.token_urlsafe(9)
                self._paths[self._ids[path]] = path
            return self._ids[path]

    def add_upload(self, path: Path) -> str:
        """As `add`. Raises TraceError for a file that is too large to take in."""
        if path.stat().st_size > MAX_UPLOAD:
            raise TraceError(
                f"{path.name}: larger than {MAX_UPLOAD >> 20} MiB; read it with: ddviz show FILE"
            )
        return self.add(path)

    def link_of(self, trace_id: str) -> str:
        """What names a trace in a link: sample:NAME, run:NAME; open:ID lasts as long as the app runs."""
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
        paths = _traces_in(folder) if folder else []
        return next((self.add(path) for path in paths if path.stem == name), None)

    def _folders(self) -> dict[str, Path]:
        return {"sample": self.samples_folder, "run": self.runs_folder}

    def __contains__(self, trace_id: object) -> bool:
        return trace_id in self._paths

    def view(
        self, trace_id: str, function: Callable[[Trace], Result], growing: bool = False
    ) -> Result | None:
        """`function` of the trace as far as it is on disk; None where not even its header is there yet.

        growing  an engine is writing it, so that a cut-off end is no damage

        Raises DdvizError for an id that was never given out, TraceError for a file that is no trace.
        """
        opened = self._opened(trace_id)
        with opened.lock:
            try:
                trace = opened.read(growing)
            except TraceError as error:
                raise TraceError(str(error).replace(str(opened.path), opened.path.name)) from None
            return None if trace is None else function(trace)

    def _opened(self, trace_id: str) -> "_OpenTrace":
        with self._lock:
            if trace_id not in self._paths:
                raise DdvizError("this trace is not open in the app any more; pick it again")
            if trace_id not in self._open:
                self._open[trace_id] = _OpenTrace(self._paths[trace_id])
            self._open.move_to_end(trace_id)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return self._open[trace_id]


class _OpenTrace:
    """A follower with its lock. Where nobody writes the file any more, a cut-off end counts as damage."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        self._follower = TraceFollower(path)
        self._whole: tuple[int | None, Trace] | None = None  # (file size, trace with its damage)

    def read(self, growing: bool) -> Trace | None:
        self._follower.poll()
        trace = self._follower.trace
        if growing or (trace is not None and not self._follower.torn_bytes()):
            return trace
        size = self.path.stat().st_size if self.path.exists() else None
        if self._whole is None or self._whole[0] != size:
            self._whole = size, load(self.path)
        return self._whole[1]


def read_lessons(readme: Path) -> dict[str, str]:
    """What each sample teaches, by trace name: lines of a README that hold NAME.ddviz and words after it."""
    if not readme.is_file():
        return {}
    lines = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", line) for line in readme.read_text("utf-8").splitlines())
    found = (re.search(r"([\w.-]+)\.ddviz\W+(.*[^\s|])", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def run_title(path: Path) -> str:
    """2026-11-29T20-41-07-ddtree-first-words -> 29 Nov 20:41:07 · ddtree first words."""
    named = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)-(.+)", path.stem)
    try:
        when = datetime.strptime(named[1], "%Y-%m-%dT%H-%M-%S") if named else None
    except ValueError:
        when = None
    if named is None or when is None:
        return path.stem
    return f"{when:%d %b %H:%M:%S} · {named[2].replace('-', ' ')}"


def run_name(mode: str, prompt: str, now: datetime) -> str:
    """The file name of a live run: when, how, and the first words of what was asked."""
    words = re.findall(r"[a-z0-9]+", prompt.lower())[:5]
    return "-".join([f"{now:%Y-%m-%dT%H-%M-%S}", mode, "-".join(words)[:40].strip("-") or "prompt"])


def unused_path(folder: Path, name: str) -> Path:
    """folder/name.ddviz, or with -2, -3 ... where that is taken. Makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
        raise TraceError(
            f"{folder}: can't keep traces there ({reason}); choose a folder with --runs"
        ) from None
    numbers = ("" if n == 1 else f"-{n}" for n in range(1, 10_000))
    return next(path for n in numbers if not (path := folder / f"{name}{n}.ddviz").exists())


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # removed since it was listed


def _traces_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.ddviz") if path.is_file()] if folder.is_dir() else []
