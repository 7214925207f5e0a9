"""A server that was started elsewhere: asked for generations, its traces followed, otherwise left alone.

Others use it too, so pause and step halt what is seen of a request, never the server.
"""

import threading
from pathlib import Path

from ddviz.engines.base import BUSY, GenerateParams
from ddviz.engines.sglang_server.api import Api, UnreachableError
from ddviz.engines.sglang_server.asking import Facts, model_info, needs
from ddviz.engines.sglang_server.copying import TraceCopy
from ddviz.engines.sglang_server.engine import ServerEngine
from ddviz.errors import BadValueError, DdvizError

LOOKS_S = 5.0  # between looks at whether the server is there


class AttachedServer(ServerEngine):
    """An `Engine` for `ddviz --attach URL --trace-dir DIR`. It looks for the server until it is there."""

    def __init__(self, url: str, traces: Path, looks_s: float = LOOKS_S) -> None:
        super().__init__(traces, remedy="Look again")
        self._server = Api(url)
        self._looks_s = looks_s
        self._again, self._closed = threading.Event(), False
        self.restart()
        threading.Thread(target=self._watch, daemon=True).start()

    def pause(self) -> None:
        if self._run is not None:
            self._run.control.pause()

    def resume(self) -> None:
        if self._run is not None:
            self._run.control.resume()

    def step(self) -> None:
        if self._run is not None:
            self._run.control.step()

    def restart(self) -> None:
        """Look for the server again, now."""
        self._be("starting", f"looking for a server at {self._server.url}", error=None)
        self._again.set()

    def close(self) -> None:
        self._closed = True
        self._again.set()
        self.stop()

    @property
    def _api(self) -> Api:
        return self._server

    def _begin(self, params: GenerateParams, trace: Path) -> None:
        assert self._facts is not None, "ready without facts"
        _require_room(params, self._facts)
        super()._begin(params, trace)

    def _lost(self) -> None:
        run = self._run
        self._be("off", f"no server answers at {self._server.url}; start it, ddviz looks every few seconds")
        if run is not None:
            run.control.stop()  # a view that is paused takes in what is there

    def _look(self) -> None:
        """What the view waits for is told in `_wait_for_view`."""

    def _finished(self, copy: TraceCopy) -> None:
        """The server's own trace is the server's."""

    def _watch(self) -> None:
        while not self._closed:
            self._again.clear()
            state = self._status.state
            if state == "ready" and not self._server.is_alive():
                self._lost()
            elif state not in ("ready", *BUSY):
                self._connect()
            # one that is of no use is asked again when somebody says so
            self._again.wait(None if self._status.state == "failed" else self._looks_s)

    def _connect(self) -> None:
        try:
            facts = self._probe()
        except UnreachableError:
            self._lost()
        except DdvizError as error:
            self._be("failed", str(error))
        else:
            model = model_info(facts, f"attached at {self._server.url}", may_grow=False, view_only=True)
            self._be("ready", "ready", model=model)


def _require_room(params: GenerateParams, facts: Facts) -> None:
    """Raises BadValueError for a tree that is larger than the server verifies."""
    asked, limits = needs(params, facts), facts.limits
    if asked is None or limits is None or not limits.exceeded_by(asked):
        return
    name, value, most = (
        ("budget", asked.budget, limits.budget)
        if asked.budget > limits.budget
        else ("topk_cap", asked.topk_cap, limits.topk_cap)
    )
    flag = f"--speculative-ddtree-{name.replace('_', '-')}"
    raise BadValueError(
        f"{name} is {value}, this server was started with {most}; ask for less, "
        f"or start it with {flag} {value}"
    )
