"""The embedded engine as a process: `python -m ddviz.engines.torch_engine '{"dtype": "float32"}'`.

In:  commands on stdin, one JSON object a line: {"do": "generate", "params": {...}, "trace": PATH}, or
     {"do": "pause" | "resume" | "step" | "stop"}.
Out: EngineStatus on stdout, one JSON object a line, at every change; the trace file; a log on stderr.
Not here: who starts it and reads it (engines/process.py).

When stdin ends, the app is gone: a running request is finished, a paused one is stopped, then the process
exits. So the app's death costs no trace, and none is left running for ever.
"""

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from ddviz.engines.base import Control, EngineOptions, EngineStatus, GenerateParams, State
from ddviz.errors import DdvizError


class Command(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    do: Literal["generate", "pause", "resume", "step", "stop"]
    params: GenerateParams | None = None
    trace: str | None = None


class Reporter:
    """Prints the status whenever it changes. Thread-safe; a reader that went away is no error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self.status = EngineStatus(state="starting", message="starting the engine")

    def __call__(
        self, state: State, message: str = "", progress: float | None = None, **changes: object
    ) -> None:
        with self._lock:
            self.status = msgspec.structs.replace(
                self.status, state=state, message=message, progress=progress, **changes
            )
            try:
                sys.stdout.buffer.write(self._encoder.encode(self.status) + b"\n")
                sys.stdout.buffer.flush()
            except (BrokenPipeError, ValueError):
                pass


class ReportedControl(Control):
    """Says when it waits and when it goes on."""

    def __init__(self, report: Reporter) -> None:
        super().__init__()
        self._report = report

    def before_step(self, on_wait: Callable[[], None] = lambda: None) -> bool:
        goes_on = super().before_step(lambda: self._report("paused", "paused before the next step"))
        if self._report.status.state != "running" and goes_on:
            self._report("running", "generating")
        return goes_on


class Server:
    """One request at a time, in a thread of its own; the main thread reads commands."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.report = Reporter()
        self.control = Control()
        self.requests: queue.SimpleQueue[tuple[GenerateParams, Path, Control] | None] = queue.SimpleQueue()
        self.failed = False

    def work(self) -> None:
        """Load, then run requests until None comes."""
        try:
            from ddviz.engines.torch_engine.loading import load_engine, model_info

            engine = load_engine(self.options, self.report)
        except DdvizError as error:
            self.fail(str(error))
            return
        except Exception as error:
            traceback.print_exc()
            self.fail(f"the engine could not load: {type(error).__name__}: {error}")
            return
        self.report("ready", "ready", model=model_info(engine))
        while (request := self.requests.get()) is not None:
            self.run(engine, *request)

    def run(self, engine, params: GenerateParams, trace: Path, control: Control) -> None:  # type: ignore[no-untyped-def]
        from ddviz.engines.torch_engine.record import Recording

        def on_prefill(done: int, total: int) -> None:
            self.report("prefill", f"reading the prompt, {total} tokens", done / total)

        error = None
        self.report("prefill", "reading the prompt", 0.0, trace=str(trace), error=None)
        try:
            with Recording(trace) as record:
                engine.generate(params, record, control, on_prefill)
        except DdvizError as refused:
            error = str(refused)
        except Exception as broken:
            traceback.print_exc()
            error = f"the engine failed: {type(broken).__name__}: {broken}"
        self.report("ready", "ready", error=error)

    def fail(self, message: str) -> None:
        self.failed = True
        self.report("failed", message)

    def obey(self, command: Command) -> None:
        match command.do:
            case "generate" if command.params and command.trace:
                self.control = ReportedControl(self.report)
                self.requests.put((command.params, Path(command.trace), self.control))
            case "generate":
                print("generate without params or trace", file=sys.stderr)
            case "pause" | "resume" | "step" | "stop" as word:
                getattr(self.control, word)()

    def serve(self) -> int:
        worker = threading.Thread(target=self.work, name="engine")
        worker.start()
        decoder = msgspec.json.Decoder(Command)
        for line in sys.stdin.buffer:
            try:
                self.obey(decoder.decode(line))
            except msgspec.MsgspecError as error:
                print(f"command not understood: {error}", file=sys.stderr)
        self.control.abandon()
        self.requests.put(None)
        worker.join()
        return 1 if self.failed else 0


if __name__ == "__main__":
    sys.exit(Server(msgspec.json.decode(sys.argv[1], type=EngineOptions)).serve())
