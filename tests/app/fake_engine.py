"""An Engine without a model: a thread that writes a made-up DDTree trace slowly, and honours Control."""

import threading
import time
import uuid
from pathlib import Path

import numpy as np

from ddviz.engines.base import Control, EngineStatus, GenerateParams, ModelInfo, State
from ddviz.errors import EngineError, TraceError
from ddviz.trace import Recorder, schema
from tests.viewer.fixtures import B, Words, make_step

MODEL = ModelInfo(
    target="fake-target",
    draft="fake-draft",
    block_size=B,
    context_length=1000,
    vocab_size=len(Words(hostile=True).bytes),
    device="cpu",
    dtype="float32",
)


class FakeEngine:
    """step_s   seconds a step takes
    hostile  the text is made of tokens that would like to be executed
    """

    runs_at_once = 1

    def __init__(self, step_s: float = 0.05, hostile: bool = False, prefill_s: float = 0.0) -> None:
        self.step_s, self.hostile, self.prefill_s = step_s, hostile, prefill_s
        self.calls: list[str] = []
        self.printed: list[str] = []
        self.asked: GenerateParams | None = None
        self.refusal: str | None = None  # the next request fails with this before it writes anything
        self._state: State = "ready"
        self._message = ""
        self._error: str | None = None
        self._trace: str | None = None
        self._progress: float | None = None
        self._control = Control()
        self._thread: threading.Thread | None = None
        self._waits = False  # between two steps, paused
        self.may_begin = threading.Event()  # a run, after its prefill
        self.may_begin.set()

    # --- what the app asks

    def status(self) -> EngineStatus:
        paused = self._state == "running" and self._waits
        return EngineStatus(
            state="paused" if paused else self._state,
            message=self._message,
            progress=self._progress,
            model=MODEL if self._state in ("ready", "running", "prefill") else None,
            trace=self._trace,
            error=self._error,
        )

    def generate(self, params: GenerateParams, trace: Path) -> None:
        if self._state != "ready":
            raise EngineError(f"the engine is {self._state}, not ready")
        self.calls.append("generate")
        self.asked = params
        self._error, refusal, self.refusal = None, self.refusal, None
        if refusal:
            self._error = refusal
            return
        self._control, self._state, self._trace = Control(), "prefill", str(trace)
        thread = threading.Thread(target=self._run, args=(params, trace, self._control), daemon=True)
        thread.start()
        self._thread = thread  # what can be joined

    def pause(self) -> None:
        self.calls.append("pause")
        self._control.pause()

    def resume(self) -> None:
        self.calls.append("resume")
        self._control.resume()

    def step(self) -> None:
        self.calls.append("step")
        self._control.step()

    def stop(self) -> None:
        self.calls.append("stop")
        self._control.stop()

    def restart(self) -> None:
        self.calls.append("restart")
        self.be("ready")

    def close(self) -> None:
        self._control.stop()
        self.may_begin.set()
        if self._thread is not None:
            self._thread.join(5)

    def log(self) -> list[str]:
        return self.printed

    # --- what a test does to it

    def be(self, state: State, message: str = "", progress: float | None = None) -> None:
        """As if the engine had come to this state; "failed" and "off" end a run without an end event."""
        self._state, self._message, self._progress = state, message, progress
        if state in ("failed", "off"):
            self._control.stop()

    def rest(self) -> None:
        """Idle and as new."""
        self.close()
        self.hostile, self.refusal, self._error, self._control = False, None, None, Control()
        self.calls.clear()
        self.be("ready")

    def _run(self, params: GenerateParams, path: Path, control: Control) -> None:
        words = Words(self.hostile)
        try:
            with Recorder(path, _header(params), words.bytes.__getitem__) as recorder:
                self._write(recorder, words, params, control)
        except TraceError as error:
            self._error = str(error)
        if self._alive:
            self._state = "ready"

    def _write(self, recorder: Recorder, words: Words, params: GenerateParams, control: Control) -> None:
        rng = np.random.default_rng(0)
        time.sleep(self.prefill_s)
        self.may_begin.wait()
        recorder.prompt([words.next(i) for i in range(5)], params.prompt)
        recorder.prefill(schema.Prefill(token=words.next(0), prob=0.5))
        output, count, reason = [words.next(0)], 0, "length"
        self._state = "running" if self._alive else self._state
        while len(output) < params.max_new_tokens:
            goes_on = control.before_step(self._wait)
            self._waits = False
            if not goes_on:
                reason = "stopped"
                break
            time.sleep(self.step_s)
            place = len(output)
            step = make_step(
                rng,
                words,
                count,
                output[-1],
                place,
                4 + place,
                params.budget,
                params.topk_cap,
                params.temperature,
            )
            step.emitted = step.emitted[: params.max_new_tokens - place]
            recorder.step(step)
            output, count = output + step.emitted, count + 1
        if self._alive:
            recorder.end(schema.End(finish_reason=reason, output_ids=output, steps=count))

    def _wait(self) -> None:
        self._waits = True

    @property
    def _alive(self) -> bool:
        return self._state not in ("failed", "off")


def _header(params: GenerateParams) -> schema.Header:
    return schema.Header(
        created="2026-11-29T20:41:07+00:00",
        engine=schema.EngineInfo(name="fake", version="0", device=MODEL.device),
        algorithm="DDTREE",
        target=MODEL.target,
        draft=MODEL.draft,
        block_size=B,
        budget=params.budget,
        topk_cap=params.topk_cap,
        sampling=schema.SamplingParams(
            temperature=params.temperature, seed=params.seed, max_new_tokens=params.max_new_tokens
        ),
        vocab_size=MODEL.vocab_size,
        request_id=uuid.uuid4().hex,
    )
