"""The seam between the app (or command line) and an engine.

In:  GenerateParams, and control words: pause, resume, step, stop.
Out: a trace file, and EngineStatus.
Not here: how an engine computes. Results travel through the trace file alone.
"""

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from ddviz.errors import BadValueError

Mode = Literal["ar", "dflash", "ddtree", "server"]  # server: whatever algorithm a server was started with
MODES: tuple[Mode, ...] = ("ar", "dflash", "ddtree")  # what an engine may be asked for
MAX_BUDGET = 1024  # the tree kernels' limit
TARGET_TOP = 8  # m, target tokens that a trace keeps per node
RECORDED_CANDIDATES = 16  # K that it keeps per draft position at least, so that what-if can answer other caps
SEED_NOTE = "The same seed gives the same sampled text in one mode, not across modes."


class GenerateParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. `checked` says whether its values make sense."""

    prompt: str
    chat: bool = True  # put the prompt through the target's chat template
    mode: Mode = "ddtree"
    budget: int = 16  # nodes beside the root (ddtree only)
    topk_cap: int = 4  # children a parent may have, 0 = no cap (ddtree only)
    temperature: float = 0.0  # below 1e-6 = greedy
    top_k: int = 0  # 0 = off, 1 = greedy
    top_p: float = 1.0  # 1 = off
    seed: int | None = None  # None = a fresh one, which the trace names
    max_new_tokens: int = 192
    threshold_single: float = 1.0
    threshold_acc: float = 1.0

    def checked(self) -> "GenerateParams":
        """Itself; raises BadValueError with one sentence on the first value that makes no sense."""
        require_text(self.prompt, "the prompt")
        number = f"{self.temperature:g}"
        rules = [
            (bool(self.prompt.strip()), "the prompt is empty; type something to continue"),
            (
                math.isfinite(self.temperature) and self.temperature >= 0,
                f"temperature is {number}, must be a finite number >= 0 (0 = greedy)",
            ),
            (self.top_k >= 0, f"top_k is {self.top_k}, must be >= 0 (0 = off)"),
            (0 < self.top_p <= 1, f"top_p is {self.top_p:g}, must be in (0, 1] (1 = off)"),
            (1 <= self.budget <= MAX_BUDGET, f"budget is {self.budget}, must be from 1 to {MAX_BUDGET}"),
            (self.topk_cap >= 0, f"topk_cap is {self.topk_cap}, must be >= 0 (0 = no cap)"),
            (self.max_new_tokens >= 1, f"max tokens is {self.max_new_tokens}, must be >= 1"),
            (
                self.seed is None or 0 <= self.seed < 2**63,
                f"seed is {self.seed}, must be from 0 to 2^63 - 1",
            ),
            (
                0 <= self.threshold_single <= 1 and 0 <= self.threshold_acc <= 1,
                f"thresholds are {self.threshold_single:g} and {self.threshold_acc:g}, must be in [0, 1]",
            ),
        ]
        for holds, sentence in rules:
            if not holds:
                raise BadValueError(sentence)
        return self


def require_text(text: str, what: str) -> None:
    """Raises BadValueError for lone surrogates: from bytes of a command line that are no UTF-8, or JSON's."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(
            f"{what} is no valid UTF-8 text: character {error.start + 1} is a broken one; retype it"
        ) from None


class EngineOptions(Struct, frozen=True, kw_only=True):
    """What an embedded engine is to load."""

    target: str | None = None  # folder or hub id; None = the demo target
    draft: str | None = None  # likewise; None = the demo drafter with the demo target, else none
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"  # auto: the faster one, measured once per CPU
    draft_dtype: Literal["float32", "bfloat16"] | None = None  # None = as dtype


State = Literal["starting", "fetching", "loading", "ready", "prefill", "running", "paused", "failed", "off"]

BUSY = ("prefill", "running", "paused")  # states with a request under way


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What an engine that is ready has loaded."""

    target: str
    draft: str | None
    block_size: int | None
    context_length: int  # tokens, prompt and output together
    vocab_size: int | None  # None: a server does not say
    device: str
    dtype: str
    note: str = ""  # a sentence: why this dtype, which server
    budget: int | None = None  # what was measured to be fastest with it, where that was measured
    topk_cap: int | None = None
    modes: tuple[Mode, ...] = MODES  # what a request may ask for
    algorithm: str = ""  # what "server" among them stands for
    max_budget: int = MAX_BUDGET  # of a request
    max_topk_cap: int | None = None  # likewise; None = any
    may_grow: bool = False  # a request for more restarts the engine with more, instead of being refused
    view_only: bool = False  # pause and step halt what is seen, not the engine


class EngineStatus(Struct, frozen=True, kw_only=True):
    """Where an engine stands."""

    state: State
    message: str = ""  # one sentence; "failed", "off": what happened and what to do, then lines of the log
    progress: float | None = None  # 0..1 of fetching, loading or prefill
    model: ModelInfo | None = None
    trace: str | None = None  # path of the current or last request's trace
    error: str | None = None  # why the last request was refused or failed; cleared by the next one
    remedy: str = "Restart engine"  # what the button says that `restart` is behind, where the engine is gone


class Engine(Protocol):
    """What the app asks of an engine, embedded or remote. None of the calls waits for the engine's work.

    runs_at_once  requests that it takes at a time; with more than one, it is a `SharedEngine`
    """

    runs_at_once: int

    def status(self) -> EngineStatus: ...

    def log(self) -> list[str]:
        """The last lines that it printed, where it is a child of this process."""

    def generate(self, params: GenerateParams, trace: Path) -> None:
        """Begin a request.

        Raises EngineError where the engine is not ready, DdvizError for bad parameters.
        """

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def step(self) -> None:
        """Run one decoding step, then pause."""

    def stop(self) -> None:
        """End the request; its trace closes with finish_reason "stopped"."""

    def restart(self) -> None: ...
    def close(self) -> None: ...


class SharedEngine(Engine, Protocol):
    """An engine that runs several requests in turns. A request is named by its trace.

    Without a trace, `status` and the control words are about the request that began last.
    """

    def status_of(self, trace: Path | None) -> EngineStatus:
        """Where it stands for one who asked for this trace, or for nothing yet: others' runs don't show."""

    def runs(self) -> list[Path]:
        """The traces of the requests under way, oldest first."""

    def pause(self, trace: Path | None = None) -> None: ...
    def resume(self, trace: Path | None = None) -> None: ...
    def step(self, trace: Path | None = None) -> None: ...
    def stop(self, trace: Path | None = None) -> None: ...


class Control:
    """Pause, step and stop, honoured between two steps. Thread-safe; one per request."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused = False
        self._allowed = 0  # steps that may run while paused
        self._stopped = False

    def pause(self) -> None:
        self._set(paused=True)

    def resume(self) -> None:
        self._set(paused=False)

    def step(self) -> None:
        self._set(paused=True, allow=1)

    def stop(self) -> None:
        self._set(stopped=True)

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def waiting(self) -> bool:
        """Whether the next `before_step` would block."""
        return self._paused and not self._allowed and not self._stopped

    def abandon(self) -> None:
        """Nobody will say another word: a run that is paused, or will pause after its step, ends."""
        with self._changed:
            self._stopped |= self._paused
            self._changed.notify_all()

    def before_step(self, on_wait: Callable[[], None] = lambda: None) -> bool:
        """Block while paused, after `on_wait()`. False = stop instead of stepping."""
        with self._changed:
            if self.waiting:
                on_wait()
            self._changed.wait_for(lambda: not self.waiting)
            self._take_allowed()
            return not self._stopped

    def may_step(self) -> bool:
        """Instead of `before_step`, for one who has other work: False while paused. Never blocks."""
        with self._changed:
            if self.waiting:
                return False
            self._take_allowed()
            return True

    def _take_allowed(self) -> None:
        if self._paused and self._allowed:
            self._allowed -= 1

    def _set(self, paused: bool | None = None, allow: int = 0, stopped: bool = False) -> None:
        with self._changed:
            if paused is not None:
                self._paused = paused
                self._allowed = self._allowed + allow if paused and allow else 0
            self._stopped |= stopped
            self._changed.notify_all()
