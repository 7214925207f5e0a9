"""The engine and its runs: each browser has its own of an engine that takes several, else all share one.

In:  GenerateParams from the Live form, control words from its buttons, who asks (visitors.py).
Out: one status dict for the browser; the current run as a viewer value.
Not here: the form (live.py), reading traces (traces.py).
"""

import itertools
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from ddviz.app.folders import reserved_path
from ddviz.app.traces import Registry, run_name
from ddviz.app.visitors import visitor
from ddviz.engines.base import BUSY, Engine, EngineStatus, GenerateParams, SharedEngine
from ddviz.errors import DdvizError, EngineError

DEAD = {"off", "failed"}
LOADING = {"starting", "fetching", "loading"}
DECIDES_S = 10.0  # within which an engine begins a run's trace or refuses it; milliseconds as a rule
ABSENT_S = 60.0  # a browser that asked nothing for so long has gone; a page asks every second
MAX_VISITORS = 256  # whose last run is remembered
CONTROLS = ("pause", "resume", "step", "stop", "restart")
NO_ENGINE = EngineStatus(
    state="off", message="No engine was started, so only Replay works; start one with: ddviz"
)


@dataclass(frozen=True, slots=True)
class Run:
    """A request that was handed to the engine."""

    trace: str  # id in the registry
    path: Path
    params: GenerateParams
    nonce: int


class Session:
    """One engine, and of each visitor at most one run at a time. Thread-safe."""

    def __init__(self, engine: Engine | None, registry: Registry) -> None:
        self.engine, self.registry = engine, registry
        self._runs: dict[str, Run] = {}  # by visitor, the one that began a run last at the end
        self._heard: dict[str, float] = {}  # when one with a run asked last
        self._lock = threading.Lock()
        self._nonces = itertools.count(1)

    @property
    def run(self) -> Run | None:
        """The run of who asks."""
        return self._runs.get(self._who())

    def _who(self) -> str:
        return "" if self._shared is None else visitor()

    @property
    def _shared(self) -> SharedEngine | None:
        """The engine, where it takes several runs at once."""
        engine = self.engine
        return cast(SharedEngine, engine) if engine is not None and engine.runs_at_once > 1 else None

    def generate(self, params: GenerateParams, one_step: bool = False) -> Run:
        """Begin a run, with `one_step` to pause after one step.

        Raises DdvizError where it can't begin, also where the engine refuses it; the run before stays the
        current one then.
        """
        if self.engine is None:
            raise EngineError(NO_ENGINE.message)
        params.checked()
        with self._lock:
            status = self.status()
            if status.state in BUSY:
                raise EngineError("the engine is still at work on a run; stop it first")
            if status.model is not None and params.mode not in status.model.modes:
                raise EngineError(f"this engine can't run mode {params.mode}; choose another mode")
            self._make_room()
            name = run_name(params.mode, params.prompt, datetime.now())
            with reserved_path(self.registry.runs_folder, name) as path:
                self.engine.generate(params, path)
                if one_step:
                    self._tell("step", path)
                self._await_decision(path)
            return self._remember(Run(self.registry.add(path), path, params, next(self._nonces)))

    def _make_room(self) -> None:
        """Where the engine takes no more, stop what stands paused for browsers that have gone."""
        shared = self._shared
        if shared is None or len(shared.runs()) < shared.runs_at_once:
            return
        now = time.monotonic()
        left = [run.path for who, run in self._runs.items() if now - self._heard.get(who, 0.0) > ABSENT_S]
        left = [path for path in left if shared.status_of(path).state == "paused"]
        for path in left:
            shared.stop(path)
        while set(left) & set(shared.runs()) and time.monotonic() < now + DECIDES_S:
            time.sleep(0.01)

    def _remember(self, run: Run) -> Run:
        """Make it the run of who asks; of too many, forget the oldest that is not under way."""
        who = self._who()
        self._runs.pop(who, None)
        self._runs[who] = run
        if len(self._runs) > MAX_VISITORS:
            ended = (who for who, run in self._runs.items() if self._status_of(run.path).state not in BUSY)
            oldest = next(ended)
            del self._runs[oldest]
            self._heard.pop(oldest, None)
        return run

    def _await_decision(self, path: Path) -> None:
        """Wait until the engine has begun to write; raises EngineError where it refuses to.

        One that restarts itself for this run, to have room for it, has decided too.
        """
        deadline = time.monotonic() + DECIDES_S
        while not path.exists() and time.monotonic() < deadline:
            status = self._status_of(path)
            if status.state in DEAD | LOADING:
                return  # the status says so, with what to do
            if status.error and status.state not in BUSY:
                raise EngineError(status.error)
            time.sleep(0.01)

    def control(self, action: str) -> None:
        """Raises DdvizError for a word that is no control, and for one that would end others' runs."""
        if self.engine is None:
            raise EngineError(NO_ENGINE.message)
        if action not in CONTROLS:
            raise DdvizError(f"unknown control; it must be one of {', '.join(CONTROLS)}")
        run = self.run
        if action != "restart":
            if self._shared is None or run is not None:
                self._tell(action, run and run.path)
            return
        if self._shared is not None and set(self._shared.runs()) - {run and run.path}:
            raise DdvizError("others have runs on this engine; it can be restarted when they have ended")
        self.engine.restart()

    def _tell(self, word: str, path: Path | None) -> None:
        """A control word, about the run with this trace where the engine has several."""
        getattr(self.engine, word)(*([] if self._shared is None else [path]))

    def status(self) -> EngineStatus:
        """Where the engine stands, for who asks."""
        run = self.run
        if run is not None:
            self._heard[self._who()] = time.monotonic()
        return self._status_of(run and run.path)

    def _status_of(self, path: Path | None) -> EngineStatus:
        if self.engine is None:
            return NO_ENGINE
        return self.engine.status() if self._shared is None else self._shared.status_of(path)

    def log(self) -> list[str]:
        """The engine's last words, oldest first."""
        return [] if self.engine is None else self.engine.log()

    def growing(self, trace_id: str) -> bool:
        """Whether the engine, or that of another app, is writing this trace or is about to."""
        run = next((run for run in list(self._runs.values()) if run.trace == trace_id), None)
        state = self._status_of(run and run.path).state
        if run is None:
            is_request = state != "off" and self.registry.is_growing_request(trace_id)
            return is_request or self.registry.is_growing_run(trace_id)
        return state in BUSY or (state not in DEAD and not run.path.exists())

    def viewer_value(self) -> dict[str, Any] | None:
        """The current run, as the viewer panel takes it."""
        run = self.run
        return run and self.value_of(run.trace, run.nonce)

    def value_of(self, trace_id: str, nonce: int) -> dict[str, Any]:
        """A trace as the viewer panel takes it: its id, whether it grows, its name in a link."""
        link = self.registry.link_of(trace_id)
        return {"trace": trace_id, "live": self.growing(trace_id), "nonce": nonce, "link": link}

    def next_nonce(self) -> int:
        return next(self._nonces)


def status_dict(status: EngineStatus) -> dict[str, Any]:
    """What the browser learns of an engine's status; paths stay here."""
    message = status.message
    if status.state == "failed":
        sentence, *log = message.split("\n")
        message = "\n".join([f"{sentence}; Replay works without an engine", *log])
    return {
        "state": status.state,
        "message": message,
        "progress": status.progress,
        "error": status.error,
        "remedy": status.remedy,
    }
