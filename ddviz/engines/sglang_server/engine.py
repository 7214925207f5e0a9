"""What an own and an attached server have in common: requests, their traces, where they stand.

In:  GenerateParams and control words, as every `Engine`.
Out: EngineStatus; a trace where the app wants it, copied from the server's folder as it grows; the server's
     answer beside it as NAME.response.json.
Not here: how a server comes to be ready, what pausing it means (own.py, attached.py).

    generate ──► POST /generate ─────────────────────────► answer ──► NAME.response.json
                      └─► the plugin writes a trace ──► copied ──► NAME.ddviz, which Live follows
"""

import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddviz.engines.base import BUSY, Control, EngineStatus, GenerateParams, State
from ddviz.engines.sglang_server.api import Api, Json, UnreachableError
from ddviz.engines.sglang_server.asking import Facts, facts_of, generate_request, probe_request
from ddviz.engines.sglang_server.copying import TraceCopy, find_trace, unreadable
from ddviz.errors import DdvizError, EngineError

POLL_S = 0.03  # between looks at a growing trace; the plugin flushes every event as it is written
TRACE_S = 5.0  # within which a trace must be whole after the server has answered
PROBE = "ddviz-probe"  # how the ids of ddviz's own short requests begin

logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """A request under way."""

    rid: str
    params: GenerateParams
    trace: Path
    control: Control  # of the copy


class ServerEngine(ABC):
    """An `Engine` that is an SGLang server. It runs others' requests too, but of this app one at a time."""

    runs_at_once = 1

    def __init__(self, traces: Path, remedy: str) -> None:
        self.traces = traces  # the server's trace folder
        self._lock = threading.RLock()
        self._status = EngineStatus(state="starting", remedy=remedy)
        self._run: Run | None = None
        self._facts: Facts | None = None

    # --- what the app asks

    def status(self) -> EngineStatus:
        return self._status

    def log(self) -> list[str]:
        return []

    def generate(self, params: GenerateParams, trace: Path) -> None:
        params.checked()
        with self._lock:
            now = self._status
            if now.state != "ready":
                reason = "it runs a request already" if now.state in BUSY else now.message.split("\n")[0]
                raise EngineError(f"the engine can't take a request now: {reason}")
            self._begin(params, trace)

    def stop(self) -> None:
        run = self._run
        if run is not None:
            self._ask(lambda: self._api.abort(run.rid))
            run.control.stop()

    @abstractmethod
    def pause(self) -> None: ...
    @abstractmethod
    def resume(self) -> None: ...
    @abstractmethod
    def step(self) -> None: ...
    @abstractmethod
    def restart(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...

    # --- what own and attached servers do differently

    @property
    @abstractmethod
    def _api(self) -> Api: ...

    @abstractmethod
    def _lost(self) -> None:
        """The server does not answer any more: say so in the status."""

    @abstractmethod
    def _look(self) -> None:
        """Called again and again while a request runs."""

    @abstractmethod
    def _finished(self, copy: TraceCopy) -> None:
        """A request is over."""

    # --- a request

    def _begin(self, params: GenerateParams, trace: Path) -> None:
        facts = self._facts
        assert facts is not None, "ready without facts"
        run = Run(f"ddviz-{secrets.token_hex(6)}", params, trace, Control())
        generate_request(params, facts, run.rid, {})  # refused before anything begins
        self._run = run
        self._be("prefill", "the server reads the prompt", trace=str(trace), error=None)
        threading.Thread(target=self._serve, args=(run, facts), daemon=True).start()

    def _serve(self, run: Run, facts: Facts) -> None:
        error, copy = None, TraceCopy(self.traces, run.rid, run.trace)
        answer = in_thread(lambda: self._answer(run, facts))
        answer.add_done_callback(self._note_loss)  # at once, also while the view is paused
        try:
            with copy:
                self._follow(run, copy, answer)
            self._keep_answer(run, answer)
        except UnreachableError as gone:
            error = str(gone)
            self._lost()
        except DdvizError as refused:
            error = str(refused)
        except Exception as unexpected:  # else it would run for ever
            logger.exception("a request of an SGLang server failed")
            error = f"{type(unexpected).__name__}: {unexpected}"
        self._finished(copy)
        self._run = None
        self._run_is("ready", "ready", error=error)

    def _note_loss(self, answer: "Future[Json]") -> None:
        if isinstance(answer.exception(), UnreachableError):
            self._lost()

    def _answer(self, run: Run, facts: Facts) -> Json:
        prompt = self._api.prompt(run.params.prompt, run.params.chat)
        return self._api.generate(generate_request(run.params, facts, run.rid, prompt))

    def _follow(self, run: Run, copy: TraceCopy, answer: "Future[Json]") -> None:
        """Copy until the trace has ended. Raises DdvizError where it will not."""
        deadline = None
        while True:
            for event in copy.new_events():
                if event.kind == "step":
                    self._wait_for_view(run.control)
                copy.keep(event)
                if self._status.state == "prefill" and event.kind == "prefill":
                    self._run_is("running", "generating")
            if copy.is_whole or self._status.state not in BUSY:
                return  # all is there, or the server died
            if answer.done():
                answer.result()
                deadline = deadline or time.monotonic() + TRACE_S
                if time.monotonic() > deadline:
                    raise EngineError(self._no_trace())
            self._look()
            time.sleep(POLL_S)

    def _wait_for_view(self, control: Control) -> None:
        """Until the next step may be seen."""
        halts: list[bool] = []

        def halt() -> None:
            halts.append(True)
            self._run_is("paused", "the view is paused, the server runs on")

        control.before_step(halt)
        if halts:
            self._run_is("running", "generating")

    def _keep_answer(self, run: Run, answer: "Future[Json]") -> None:
        if run.trace.exists():
            said = answer.result(timeout=TRACE_S)
            run.trace.with_suffix(".response.json").write_bytes(msgspec.json.encode(said))

    # --- whether a server can be used at all

    def _probe(self) -> Facts:
        """What the server says of itself, once it has generated a token and traced it.

        Raises UnreachableError where it is not ready, another DdvizError where it is of no use.
        """
        facts = facts_of(self._api.server_info())
        self._facts = facts
        rid = f"{PROBE}-{secrets.token_hex(4)}"
        self._api.generate(probe_request(rid, 1, "light"))
        deadline = time.monotonic() + TRACE_S
        while (trace := self._trace_of(rid)) is None:
            if time.monotonic() > deadline:
                raise EngineError(self._no_trace())
            time.sleep(POLL_S)
        try:
            trace.open("rb").close()
        except OSError as error:
            raise unreadable(trace, error) from None
        try:
            trace.unlink()
        except OSError:
            pass  # somebody else's folder
        return facts

    def _trace_of(self, rid: str) -> Path | None:
        return find_trace(self.traces, f"-{rid}.ddviz") if self.traces.is_dir() else None

    def _no_trace(self) -> str:
        wants = "start it with"
        if self._facts is not None and not self._facts.has_plugin:
            wants = "it needs ddviz (pip install 'ddviz[sglang]' where it runs) and"
        return (
            f"the server at {self._api.url} answers but writes no trace into {self.traces}; {wants} "
            f"DDVIZ_TRACE_DIR={self.traces}, or name its trace folder with --trace-dir"
        )

    # --- small things

    def _be(self, state: State, message: str, progress: float | None = None, **changes: Any) -> None:
        with self._lock:
            self._status = msgspec.structs.replace(
                self._status, state=state, message=message, progress=progress, **changes
            )

    def _run_is(self, state: State, message: str, **changes: Any) -> None:
        """As `_be`, of a request under way: where the server is gone, it stays gone."""
        with self._lock:
            if self._status.state in BUSY:
                self._be(state, message, **changes)

    def _ask(self, call: Callable[[], None]) -> None:
        """A control word; what the server refuses is told beside the buttons."""
        try:
            call()
        except DdvizError as error:
            self._be(self._status.state, self._status.message, error=str(error))


def in_thread(function: Callable[[], Json]) -> "Future[Json]":
    """A thread of its own, which ends with the process."""
    future: Future[Json] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
