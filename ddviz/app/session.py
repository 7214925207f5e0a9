"""The engine and its current run, shared by every page that is open.

In:  GenerateParams from the Live form, control words from its buttons.
Out: one status dict for the browser; the current run as a viewer value.
Not here: the form (live.py), reading traces (traces.py).
"""

import itertools
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ddviz.app.traces import Registry, run_name, unused_path
from ddviz.engines.base import BUSY, Engine, EngineStatus, GenerateParams
from ddviz.errors import DdvizError, EngineError

DEAD = {"off", "failed"}
LOADING = {"starting", "fetching", "loading"}
DECIDES_S = 10.0  # within which an engine begins a run's trace or refuses it; milliseconds as a rule
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
    """One engine, at most one run at a time. Thread-safe."""

    def __init__(self, engine: Engine | None, registry: Registry) -> None:
        self.engine, self.registry = engine, registry
        self.run: Run | None = None
        self._lock = threading.Lock()
        self._nonces = itertools.count(1)

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
            name = run_name(params.mode, params.prompt, datetime.now())
            path = unused_path(self.registry.runs_folder, name)
            self.engine.generate(params, path)
            if one_step:
                self.engine.step()
            self._await_decision(path)
            self.run = Run(self.registry.add(path), path, params, next(self._nonces))
            return self.run

    def _await_decision(self, path: Path) -> None:
        """Wait until the engine has begun to write; raises EngineError where it refuses to.

        One that restarts itself for this run, to have room for it, has decided too.
        """
        deadline = time.monotonic() + DECIDES_S
        while not path.exists() and time.monotonic() < deadline:
            status = self.status()
            if status.state in DEAD | LOADING:
                return  # the status says so, with what to do
            if status.error and status.state not in BUSY:
                raise EngineError(status.error)
            time.sleep(0.01)

    def control(self, action: str) -> None:
        """Raises DdvizError for a word that is no control."""
        if self.engine is None:
            raise EngineError(NO_ENGINE.message)
        if action not in CONTROLS:
            raise DdvizError(f"unknown control; it must be one of {', '.join(CONTROLS)}")
        getattr(self.engine, action)()

    def status(self) -> EngineStatus:
        return NO_ENGINE if self.engine is None else self.engine.status()

    def log(self) -> list[str]:
        """The engine's last words, oldest first."""
        return [] if self.engine is None else self.engine.log()

    def growing(self, trace_id: str) -> bool:
        """Whether the engine is writing this trace, or is about to."""
        run, state = self.run, self.status().state
        if run is None or run.trace != trace_id:
            return state != "off" and self.registry.is_growing_request(trace_id)
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
