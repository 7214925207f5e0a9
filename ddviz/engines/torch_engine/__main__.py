"""The embedded engine as a process: `python -m ddviz.engines.torch_engine '{"dtype": "float32"}'`.

In:  commands on stdin, one JSON object a line: {"do": "generate", "params": {...}, "trace": PATH}, or
     {"do": "pause" | "resume" | "step" | "stop", "trace": PATH}.
Out: EngineStatus on stdout, one JSON object a line, at every change, of the engine (without a trace) or of a
     request (with its trace); the trace files; a log on stderr.
Not here: who starts it and reads it (engines/process.py).

Several requests run in turns: a step of each, in the order in which they came. When stdin ends, the app is
gone: running requests are finished, paused ones are stopped, then the process exits. So the app's death costs
no trace, and none is left running for ever.
"""

import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ddviz.engines.base import Control, EngineOptions, EngineStatus, GenerateParams, State
from ddviz.errors import DdvizError


class Command(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    do: Literal["generate", "pause", "resume", "step", "stop"]
    params: GenerateParams | None = None
    trace: str | None = None


class Request(NamedTuple):
    params: GenerateParams
    trace: str
    control: Control


_printing = threading.Lock()
_encoder = msgspec.json.Encoder()


class Reporter:
    """Prints the status of the engine or of a request at every change; a reader that left is no error."""

    def __init__(self, trace: str | None = None) -> None:
        self.status = EngineStatus(state="starting", message="starting the engine", trace=trace)

    def __call__(
        self, state: State, message: str = "", progress: float | None = None, **changes: object
    ) -> None:
        self.status = msgspec.structs.replace(
            self.status, state=state, message=message, progress=progress, **changes
        )
        with _printing:
            try:
                sys.stdout.buffer.write(_encoder.encode(self.status) + b"\n")
                sys.stdout.buffer.flush()
            except (BrokenPipeError, ValueError):
                pass


class Server:
    """Requests run in a thread of their own; the main thread reads commands."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.report = Reporter()
        self.controls: dict[str, Control] = {}  # of the requests under way, by trace
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.told = threading.Event()  # a command came since the last round
        self.failed = False

    def work(self) -> None:
        """Load, then run requests until None comes and all have ended."""
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
        self.take_turns(engine)

    def take_turns(self, engine: Any) -> None:
        """Round after round, one step of each request; sleeps while there is none that may step."""
        under_way: deque[Iterator[bool]] = deque()
        is_open = True
        while is_open or under_way:
            self.told.clear()
            while not self.requests.empty():
                request = self.requests.get()
                is_open &= request is not None
                if request is not None:
                    under_way.append(self.run(engine, request))
            is_busy = False
            for _ in range(len(under_way)):
                turns = under_way.popleft()
                stepped = next(turns, None)
                if stepped is not None:
                    under_way.append(turns)
                is_busy |= stepped is not False
            if not is_busy and (is_open or under_way):
                self.told.wait()

    def run(self, engine: Any, request: Request) -> Iterator[bool]:
        """A request in turns. Yields after each whether it did anything; False while it is paused."""
        from ddviz.engines.torch_engine.record import Recording

        params, trace, control = request
        report, error = Reporter(trace), None

        def on_prefill(done: int, total: int) -> None:
            report("prefill", f"reading the prompt, {total} tokens", done / total)

        report("prefill", "reading the prompt", 0.0)
        try:
            with Recording(Path(trace)) as record:
                for is_before_step in engine.turns(params, record, control, on_prefill):
                    yield True
                    while is_before_step and not control.may_step():
                        if report.status.state != "paused":
                            report("paused", "paused before the next step")
                        yield False
                    if is_before_step and report.status.state != "running" and not control.stopped:
                        report("running", "generating")
        except DdvizError as refused:
            error = str(refused)
        except Exception as broken:
            traceback.print_exc()
            error = f"the engine failed: {type(broken).__name__}: {broken}"
        self.controls.pop(trace, None)
        report("ready", "ready", error=error)

    def fail(self, message: str) -> None:
        self.failed = True
        self.report("failed", message)

    def obey(self, command: Command) -> None:
        match command.do:
            case "generate" if command.params and command.trace:
                control = self.controls[command.trace] = Control()
                self.requests.put(Request(command.params, command.trace, control))
            case "generate":
                print("generate without params or trace", file=sys.stderr)
            case "pause" | "resume" | "step" | "stop" as word:
                if (control := self.controls.get(command.trace or "")) is not None:
                    getattr(control, word)()
        self.told.set()

    def serve(self) -> int:
        worker = threading.Thread(target=self.work, name="engine")
        worker.start()
        decoder = msgspec.json.Decoder(Command)
        for line in sys.stdin.buffer:
            try:
                self.obey(decoder.decode(line))
            except msgspec.MsgspecError as error:
                print(f"command not understood: {error}", file=sys.stderr)
        for control in list(self.controls.values()):
            control.abandon()
        self.requests.put(None)
        self.told.set()
        worker.join()
        return 1 if self.failed else 0


if __name__ == "__main__":
    sys.exit(Server(msgspec.json.decode(sys.argv[1], type=EngineOptions)).serve())
