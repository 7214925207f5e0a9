"""The writers' processes, from both ends of their pipes.

In:  jobs, from the scheduler's process.
Out: the same jobs to a TraceWriter, in a process that lives as long as the pipe is open. When the server is
     killed, the pipe closes, and what it held is still written.
Not here: what is written (writer.py).

A thread of the scheduler's process that encodes steps would take Python's lock from it: at batch 16 for most
of the time of a step. One process writes about two thousand rows of 17 nodes a second, and a batch of 16
makes more: there are several, each with requests of its own.
"""

import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

import ddviz
from ddviz.engines.sglang_plugin.tracing.jobs import Begin, Ended, Job, Lost, Row, Stepped
from ddviz.engines.sglang_plugin.tracing.outbox import Outbox
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


class WriterProcesses:
    """As many as the slots have readers. `put` never waits, and is for the scheduler's thread alone."""

    def __init__(self, slots: Slots, tokenizer: Tokenizer) -> None:
        """Returns when all are ready. RuntimeError where one does not start."""
        self._slots = slots
        self._writers = [WriterProcess(slots, tokenizer, reader) for reader in range(slots.readers)]
        try:
            for writer in self._writers:
                writer.wait()
        except RuntimeError:
            for writer in self._writers:
                writer.kill()
            raise
        self._open: dict[str, tuple[int, str]] = {}  # by request: whose it is, and its trace's path

    def put(self, job: Job) -> None:
        if isinstance(job, Lost):  # is it that one of them has died with slots that it had?
            for writer in self._writers:
                writer.check()
        match job:
            case Begin():
                busy = [reader for reader, _ in self._open.values()]
                self._open[job.rid] = min(range(len(self._writers)), key=busy.count), job.path
                self._writer_of(job.rid).put(job)
            case Stepped():
                shares: list[list[Row]] = [[] for _ in self._writers]
                for row in job.rows:
                    shares[self._reader_of(row.rid)].append(row)
                for reader, (writer, rows) in enumerate(zip(self._writers, shares, strict=True)):
                    if rows:
                        writer.put(Stepped(job.turn, job.layout, rows, job.times_us))
                    else:
                        self._slots.free(job.turn, reader)
            case Ended():
                writer = self._writer_of(job.rid)
                self._open.pop(job.rid, None)
                others = [path for _, path in self._open.values()]
                writer.put(msgspec.structs.replace(job, being_written=others))
            case _:
                self._writer_of(job.rid).put(job)

    def close(self, timeout: float | None = None) -> None:
        """Until all jobs are written and the processes have ended."""
        for writer in self._writers:
            writer.close(timeout)

    def _reader_of(self, rid: str) -> int:
        return self._open[rid][0] if rid in self._open else 0

    def _writer_of(self, rid: str) -> "WriterProcess":
        return self._writers[self._reader_of(rid)]


class WriterProcess:
    """One process. `put` never waits."""

    def __init__(self, slots: Slots, tokenizer: Tokenizer, reader: int = 0) -> None:
        """Begins to start it: `wait` before the first job. reader: which of the slots' readers it is."""
        self._slots, self._reader = slots, reader
        facts = (slots.descriptor, slots.count, slots.size, slots.readers, reader)
        command = [sys.executable, "-m", __name__, *map(str, facts)]
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
        assert self._process.stdin is not None
        self._outbox = Outbox(self._process.stdin)
        self._gone = False
        self._encode = msgspec.msgpack.Encoder().encode

    def wait(self) -> None:
        """Until it is ready. RuntimeError where it does not start."""
        assert self._process.stdout is not None
        readable = select.poll()
        readable.register(self._process.stdout, select.POLLIN)
        if not readable.poll(1000 * START_LIMIT_S) or self._process.stdout.read(1) != READY:
            raise RuntimeError("a process that writes traces did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def put(self, job: Job) -> None:
        if self._gone:
            if isinstance(job, Stepped):
                self._slots.free(job.turn, self._reader)
            return
        try:
            encoded = self._encode(job)
            self._outbox.send(len(encoded).to_bytes(_LENGTH, "little") + encoded)
        except BrokenPipeError:
            self._bury()
        except Exception:  # the other writers are told all the same
            logger.exception("ddviz: a trace event was lost")
            if isinstance(job, Stepped):
                self._slots.free(job.turn, self._reader)

    def check(self) -> None:
        """Free its slots if it has ended."""
        if not self._gone and self._process.poll() is not None:
            self._bury()

    def _bury(self) -> None:
        self._gone = True
        logger.error("ddviz: a process that writes traces has ended; its requests are traced no more")
        for turn in range(self._slots.count):
            self._slots.free(turn, self._reader)

    def close(self, timeout: float | None = None) -> None:
        """Until all jobs are written and the process has ended."""
        self._outbox.close(timeout)
        self._process.wait(timeout)


def main(arguments: list[str]) -> None:
    """descriptor, count, size and readers of the slots, which of them this is; the tokenizer's path, 1 where
    its code is trusted.
    """
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)  # it ends when the pipe does
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    descriptor, count, size, readers, reader = map(int, arguments[:5])
    slots = Slots(count, size, descriptor, readers)
    writer = TraceWriter(slots, token_bytes_of(Tokenizer(arguments[5], arguments[6] == "1")), reader)
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
