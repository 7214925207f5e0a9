"""A server that the app starts for itself, on a port of this machine alone, and ends with itself.

Pause is SGLang's own; step lets one decoding step through a gate in the plugin (gatekeeper.py), which needs
overlap scheduling off. A tree beyond the server's limits restarts it with more, and runs when it is ready.
"""

import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddviz.engines.base import RECORDED_CANDIDATES, GenerateParams
from ddviz.engines.sglang_server.api import Api, UnreachableError
from ddviz.engines.sglang_server.asking import Limits, model_info, needs, probe_request
from ddviz.engines.sglang_server.child import GRACE_S, Child, Progress
from ddviz.engines.sglang_server.copying import TraceCopy
from ddviz.engines.sglang_server.engine import PROBE, ServerEngine
from ddviz.engines.sglang_server.gatekeeper import Gatekeeper
from ddviz.errors import EngineError

LAUNCH = (sys.executable, "-m", "sglang.launch_server")
START = Limits(16, RECORDED_CANDIDATES)  # a trace keeps so many candidates anyway: a wide cap costs nothing
SHOWN_LINES = 12  # of the log of a server that died
ASKS_S = 0.3  # between questions to a server that is loading
DIES_S = 3.0  # within which a server that does not answer is found dead
UNWATCHED = "10000000"  # seconds: SGLang's watchdog kills a server that is paused for longer
WARM_TOKENS = 8
ERROR_LINE = re.compile(  # the end of a traceback, or what argparse says; not a warning that quotes an error
    r"(?:\[[^]]*\]:? )?(?:[^:]+: (?=error: ))?((?:[\w.]*(?:Error|Exception)|error): \S.*)"
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server is started with."""

    target: str
    draft: str
    extra: tuple[str, ...] = ()  # more arguments of sglang.launch_server; they win over ddviz's defaults
    launch: tuple[str, ...] = LAUNCH


@dataclass(slots=True)
class Waiting:
    """A request that begins once the server has been restarted with more room."""

    params: GenerateParams
    trace: Path
    one_step: bool = False  # asked for while it waits


class OwnServer(ServerEngine):
    """An `Engine` for `ddviz --engine sglang`. Starts at once."""

    def __init__(self, options: ServerOptions, traces: Path, grace_s: float = GRACE_S) -> None:
        super().__init__(traces, remedy="Start the server again")
        self.options = options
        self._grace_s = grace_s
        self._room: Limits | None = None  # beyond what the options say, once a request needed it
        self._waiting: Waiting | None = None
        self._halted = False  # by SGLang's pause
        self._restarting = threading.Lock()
        self._temporary = tempfile.TemporaryDirectory(prefix="ddviz-gate-")
        self._gate = Gatekeeper(Path(self._temporary.name))
        self._child: Child | None = None  # the server that is there; `_log_of` stays when it has ended
        self._start()

    # --- what the app asks

    def log(self) -> list[str]:
        return self._log_of.log()

    def pause(self) -> None:
        if self._run is not None:
            self._ask(self._server.pause)
            self._halted = True
            self._run_is("paused", "paused before the next step")

    def resume(self) -> None:
        self._let_go()
        self._run_is("running", "generating")

    def step(self) -> None:
        if self._waiting is not None:
            self._waiting.one_step = True
        elif self._run is not None:
            if self._status.state == "running" and not self._gate.is_closed:
                self._ask(self._server.pause)  # so that all ranks find the gate closed before the same step
            self._gate.allow()
            self._ask(self._server.go_on)
            self._halted = False
            if self._status.state == "paused":
                self._run_is("running", "one step")

    def stop(self) -> None:
        super().stop()
        self._let_go()

    def restart(self) -> None:
        threading.Thread(target=self._restart, daemon=True).start()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()
        self._temporary.cleanup()

    # --- its process

    @property
    def _api(self) -> Api:
        return self._server

    def _start(self) -> None:
        port = free_port()
        self._server = Api(f"http://127.0.0.1:{port}")
        self.traces.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = {"DDVIZ_TRACE_DIR": str(self.traces), "DDVIZ_GATE": str(self._gate.folder)}
        with self._lock:
            self._be("starting", "starting the SGLang server", 0.0, error=None)
            self._child = self._log_of = Child(
                self._command(port), environment, self._progressed, self._ended, self._grace_s
            )
        threading.Thread(target=self._make_ready, args=(self._child,), daemon=True).start()

    def _command(self, port: int) -> list[str]:
        options = self.options
        command = [*options.launch, "--model-path", options.target]
        command += ["--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", options.draft]
        command += ["--attention-backend", "triton", *_flags(START), *options.extra]
        command += _flags(self._room) if self._room else []
        command += ["--host", "127.0.0.1", "--port", str(port)]
        return [*command, "--disable-overlap-schedule", "--watchdog-timeout", UNWATCHED]

    def _progressed(self, child: Child, progress: Progress) -> None:
        with self._lock:
            if child is self._child and self._status.state in ("starting", "loading"):
                self._be("loading", f"the SGLang server is {progress.doing}", progress.fraction)

    def _make_ready(self, child: Child) -> None:
        """Wait until the server has generated, then warm it up."""
        while child is self._child and child.is_running():
            try:
                facts = self._probe()
                for temperature in (0.0, 1.0):  # a greedy and a sampled step compile kernels of their own
                    rid = f"{PROBE}-warm-{temperature:g}"
                    self._server.generate(probe_request(rid, WARM_TOKENS, "off", temperature))
            except UnreachableError:
                time.sleep(ASKS_S)
            except EngineError as error:
                self._give_up(child, str(error))
                return
            else:
                where = f"overlap scheduling off, at {self._server.url}"
                self._ready(child, model_info(facts, where, may_grow=True, view_only=False))
                return

    def _ready(self, child: Child, model: object) -> None:
        with self._lock:
            if child is not self._child:
                return
            self._be("ready", "ready", model=model)
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._begin(waiting.params, waiting.trace)
        if waiting is not None and waiting.one_step:
            self.step()

    def _give_up(self, child: Child, sentence: str) -> None:
        """The server runs, but is of no use."""
        with self._lock:
            if child is not self._child:
                return
            self._child = None
            self._be("failed", sentence)
        child.end()

    def _ended(self, child: Child) -> None:
        with self._lock:
            if child is self._child:
                self._child, self._waiting = None, None
                self._be("off", obituary(child.fate(), child.log()))

    def _restart(self) -> None:
        """A second one while one is under way does nothing."""
        if not self._restarting.acquire(blocking=False):
            return
        try:
            with self._lock:
                child, self._child = self._child, None
                self._be("starting", "ending the server that runs", error=None)
            if child is not None:
                child.end()
            self._start()
        finally:
            self._restarting.release()

    # --- a request

    def _begin(self, params: GenerateParams, trace: Path) -> None:
        assert self._facts is not None, "ready without facts"
        asked, limits = needs(params, self._facts), self._facts.limits
        if asked is None or limits is None or not limits.exceeded_by(asked):
            super()._begin(params, trace)
            return
        self._room = limits.with_room_for(asked)
        self._waiting = Waiting(params, trace)
        self._be("starting", "restarting the server for a larger tree", trace=str(trace), error=None)
        self.restart()

    def _look(self) -> None:
        if self._gate.holds and self._status.state != "paused":
            self._run_is("paused", "paused before the next step")

    def _lost(self) -> None:
        """It does not answer: as a rule because it died, which is told when its process is gone."""
        deadline = time.monotonic() + DIES_S
        while self._child is not None and time.monotonic() < deadline:
            time.sleep(ASKS_S)

    def _finished(self, copy: TraceCopy) -> None:
        self._let_go()
        if copy.is_whole and copy.source is not None:
            copy.source.unlink(missing_ok=True)

    def _let_go(self) -> None:
        self._gate.open()
        if self._halted:
            self._ask(self._server.go_on)
            self._halted = False


def obituary(fate: str, log: Sequence[str]) -> str:
    """One sentence on a server that died, then the last lines of its log."""
    errors = (ERROR_LINE.match(line) for line in reversed(log))
    error = next((found[1] for found in errors if found), None)
    why = f": {error:.300}" if error else ""
    remedy = "start it again below"
    if any("out of memory" in line.lower() for line in log):
        remedy = "leave it less memory with: -- --mem-fraction-static 0.7"
    sentence = f"the SGLang server {fate}{why}; what it traced is kept; {remedy}"
    return "\n".join([sentence, *log[-SHOWN_LINES:]])


def _flags(limits: Limits) -> list[str]:
    names = ("--speculative-ddtree-budget", "--speculative-ddtree-topk-cap")
    return [word for name, value in zip(names, limits, strict=True) for word in (name, str(value))]


def free_port() -> int:
    """One of this machine alone that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
