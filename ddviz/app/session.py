"""The engine and its current run, shared by every page that is open.

In:  GenerateParams from the Live form, control words from its buttons.
Out: one status dict for the browser; the current run as a viewer value.
Not here: the form (live.py), reading traces (traces.py).
"""

import itertools
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ddviz.app.traces import Registry, run_name, unused_path
from ddviz.engines.base import BUSY, Engine, EngineStatus, GenerateParams
from ddviz.errors import DdvizError, EngineError

DEAD = {"off", "failed"}
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
        self._before: Run | None = None  # what to show again where the engine refuses a run
        self._lock = threading.Lock()
        self._nonces = itertools.count(1)

    def generate(self, params: GenerateParams, one_step: bool = False) -> Run:
        """Begin a run, with `one_step` to pause after one step. Raises DdvizError where it can't begin."""
        if self.engine is None:
            raise EngineError(NO_ENGINE.message)
        params.checked()
        with self._lock:
            if self.status().state in BUSY:
                raise EngineError("the engine is still at work on a run; stop it first")
            name = run_name(params.mode, params.prompt, datetime.now())
            path = unused_path(self.registry.runs_folder, name)
            self.engine.generate(params, path)
            if one_step:
                self.engine.step()
            self._before = self.run
            self.run = Run(self.registry.add(path), path, params, next(self._nonces))
            return self.run

    def control(self, action: str) -> None:
        """Raises DdvizError for a word that is no control."""
        if self.engine is None:
            raise EngineError(NO_ENGINE.message)
        if action not in CONTROLS:
            raise DdvizError(f"unknown control; it must be one of {', '.join(CONTROLS)}")
        getattr(self.engine, action)()

    def status(self) -> EngineStatus:
        run = self.run  # before the status: a run begun since then has its own
        status = NO_ENGINE if self.engine is None else self.engine.status()
        if status.error and run is not None and run is self.run and not run.path.exists():
            self.run = self._before  # refused before it wrote anything
        return status

    def growing(self, trace_id: str) -> bool:
        """Whether the engine is writing this trace, or is about to."""
        run = self.run
        if run is None or run.trace != trace_id:
            return False
        state = self.status().state
        return state in BUSY or (state not in DEAD and not run.path.exists())

    def viewer_value(self) -> dict[str, Any] | None:
        """The current run, as the viewer panel takes it."""
        run = self.run
        return run and {"trace": run.trace, "live": self.growing(run.trace), "nonce": run.nonce}

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
    }
