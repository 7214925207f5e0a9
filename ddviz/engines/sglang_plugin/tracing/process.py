"""The writer's process, from both ends of the pipe.

In:  jobs, from the scheduler's process.
Out: the same jobs to a TraceWriter, in a process that lives as long as the pipe is open. When the server is
     killed, the pipe closes, and what it held is still written.
Not here: what is written (writer.py).

A thread of the scheduler's process that encodes steps would take Python's lock from it: at batch 16 for most
of the time of a step.
"""

import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

import ddviz
from ddviz.engines.sglang_plugin.tracing.jobs import Job
from ddviz.engines.sglang_plugin.tracing.slots import Slots
from ddviz.engines.sglang_plugin.tracing.writer import TraceWriter

START_LIMIT_S = 120.0
READY = b"\n"
_LENGTH = 4  # bytes before every job

logger = logging.getLogger(__name__)


class Tokenizer(NamedTuple):
    """Where token texts come from: a folder or a hub's name, "" = traces carry no text."""

    path: str
    trust_remote_code: bool


class WriterProcess:
    """Starts the process, and hands it jobs: `put` never waits, and is for the scheduler's thread alone."""

    def __init__(self, slots: Slots, tokenizer: Tokenizer) -> None:
        """Returns when the process is ready. RuntimeError where it does not start."""
        command = [sys.executable, "-m", __name__, str(slots.descriptor), str(slots.count), str(slots.size)]
        root = str(Path(ddviz.__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [*command, tokenizer.path, str(int(tokenizer.trust_remote_code))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[slots.descriptor],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a Ctrl-C is for the server, which then closes the pipe
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._pipe: BinaryIO = self._process.stdin
        readable, _, _ = select.select([self._process.stdout], [], [], START_LIMIT_S)
        if not readable or self._process.stdout.read(1) != READY:
            self._process.kill()
            raise RuntimeError("the process that writes traces did not start")
        self._encode = msgspec.msgpack.Encoder().encode
        self._jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._feed, name="ddviz-trace-feeder", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        if self._thread.is_alive():
            self._jobs.put(self._encode(job))

    def close(self, timeout: float | None = None) -> None:
        """Until all jobs are written and the process has ended."""
        self._jobs.put(None)
        self._thread.join(timeout)
        self._process.wait(timeout)

    def _feed(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                self._pipe.write(len(job).to_bytes(_LENGTH, "little") + job)
                if self._jobs.empty():
                    self._pipe.flush()
            self._pipe.close()
        except BrokenPipeError:
            logger.error("ddviz: the process that writes traces has ended; nothing more is traced")


def main(arguments: list[str]) -> None:
    """descriptor, count and size of the slots; the tokenizer's path, 1 where its code is trusted."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)  # it ends when the pipe does
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    descriptor, count, size = map(int, arguments[:3])
    slots = Slots(count, size, descriptor)
    writer = TraceWriter(slots, token_bytes_of(Tokenizer(arguments[3], arguments[4] == "1")))
    decode = msgspec.msgpack.Decoder(Job).decode
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    pipe = sys.stdin.buffer
    while len(length := pipe.read(_LENGTH)) == _LENGTH:
        job = pipe.read(int.from_bytes(length, "little"))
        try:
            writer.put(decode(job))
        except msgspec.MsgspecError:  # cut off as the server died
            logger.exception("ddviz: a trace event was lost")
    writer.close()


def token_bytes_of(tokenizer: Tokenizer) -> Callable[[int], bytes | None]:
    """From token id to raw bytes; nothing for any id where there is no tokenizer."""
    if not tokenizer.path:
        return lambda token: None
    try:
        from transformers import AutoTokenizer

        from ddviz.engines.token_bytes import token_bytes_function

        loaded = AutoTokenizer.from_pretrained(
            tokenizer.path, trust_remote_code=tokenizer.trust_remote_code, local_files_only=True
        )
        of = token_bytes_function(loaded)
        return lambda token: of(token) if 0 <= token < 1 << 31 else None  # a fault may be anything
    except Exception as error:
        logger.warning("ddviz: traces carry no token text: %s", error)
        return lambda token: None


if __name__ == "__main__":
    main(sys.argv[1:])
