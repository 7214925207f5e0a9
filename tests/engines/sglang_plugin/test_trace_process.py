"""The writer as a process of its own: it writes what it is told, outlives a killed server, harms nobody."""

import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from ddviz.check.doctor import examine
from ddviz.engines.sglang_plugin.tracing import process
from ddviz.engines.sglang_plugin.tracing.jobs import Begin, Ended, Job, Layout, Lost, Row, Stepped
from ddviz.engines.sglang_plugin.tracing.process import Tokenizer, WriterProcesses, token_bytes_of
from ddviz.engines.sglang_plugin.tracing.ring import Ring
from ddviz.engines.sglang_plugin.tracing.slots import Slots
from ddviz.engines.sglang_plugin.tracing.steps import HostFacts
from ddviz.trace import load
from ddviz.trace.schema import End
from tests.engines.sglang_plugin.test_tracing import Engine, request
from tests.trace.runs import header

NO_TOKENIZER = Tokenizer("", False)
NO_ARRAYS = Layout.of(()).encoded


@pytest.fixture
def engine(tmp_path):
    """An engine whose writer is a process."""
    made = Engine(tmp_path, Slots(8, 200_000, readers=2))
    made.writer = made.tracer.writer = WriterProcesses(made.tracer.ring.slots, NO_TOKENIZER)
    yield made
    made.writer.close(30)


def test_a_process_writes_what_a_writer_here_writes(engine, tmp_path):
    reqs = [request("a", temperature=1.1), request("b", temperature=0.8)]
    traces = engine.run(reqs)
    for req in reqs:
        assert traces[req.rid].end.output_ids == req.output_ids_through_stop
        assert examine(traces[req.rid]) == []
        assert len(traces[req.rid].steps) > 3


def test_slots_come_back(engine):
    """Far more steps than slots, one after the other: none is dropped."""
    reqs = [request("a", max_new_tokens=60)]
    engine.prefill(reqs)
    while not reqs[0].finished():
        engine.settle(reqs, *engine.launch(reqs))
        wait_until(lambda: b"\0\0" in states(engine.tracer.ring.slots))
    engine.writer.close(30)
    trace = load(next(engine.folder.glob("*.ddviz")))
    assert len(trace.steps) > 16 and not trace.dropped


def test_a_killed_server_leaves_every_step_that_it_had_told(tmp_path):
    program = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from tests.engines.sglang_plugin.test_trace_process import *\n"
        "engine = Engine(Path(sys.argv[1]), Slots(64, 200_000))\n"
        "writer = engine.tracer.writer = WriterProcesses(engine.tracer.ring.slots, NO_TOKENIZER)\n"
        "req = request('a', max_new_tokens=1000)\n"
        "engine.table[:, 0] = -100\n"
        "engine.prefill([req])\n"
        "for _ in range(12):\n"
        "    engine.settle([req], *engine.launch([req]))\n"
        "wait_until(lambda: not writer._writers[0]._outbox.behind)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[3], check=False)
    (path,) = tmp_path.glob("*.ddviz")
    wait_until(lambda: len(load(path).steps) == 12)
    assert load(path).end is None


def test_a_writer_that_died_is_told_once_and_disturbs_nobody(engine, caplog):
    reqs = [request("a", max_new_tokens=40)]
    engine.prefill(reqs)
    engine.writer._writers[0]._process.kill()
    engine.writer._writers[0]._process.wait()
    while not reqs[0].finished():
        engine.settle(reqs, *engine.launch(reqs))
    wait_until(lambda: "has ended" in caplog.text)
    assert caplog.text.count("has ended") == 1
    assert engine.tracer.failures == 0


def test_a_process_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="did not start"):
        WriterProcesses(Slots(2, 100), NO_TOKENIZER)


def test_when_one_process_does_not_start_the_others_end(monkeypatch):
    monkeypatch.setattr(process, "WriterProcess", ToldWriter)
    monkeypatch.setattr(ToldWriter, "fails", {1})
    made = []
    monkeypatch.setattr(ToldWriter, "made", made)
    with pytest.raises(RuntimeError, match="did not start"):
        WriterProcesses(Slots(2, 100, readers=3), NO_TOKENIZER)
    assert [writer.killed for writer in made] == [True, True, True]


def test_without_a_tokenizer_tokens_have_no_text(tmp_path):
    assert token_bytes_of(NO_TOKENIZER)(5) is None
    assert token_bytes_of(Tokenizer(str(tmp_path), False))(5) is None  # nothing to load there


def test_a_slot_is_taken_until_it_is_freed_and_holds_what_was_put():
    slots = Slots(2, 64)
    ring = Ring(slots, "cpu")
    first = ring.put({"a": torch.arange(4), "b": torch.tensor([1.5])})
    second = ring.put({"a": torch.arange(4)})
    assert (first.turn, second.turn) == (0, 1)
    assert ring.put({"a": torch.arange(4)}) is None
    assert slots.read(first.turn, 36) == torch.arange(4).numpy().tobytes() + b"\x00\x00\xc0\x3f"
    slots.free(second.turn)
    assert ring.put({"a": torch.arange(4)}) is None  # it is the first one's turn
    slots.free(first.turn)
    assert ring.put({"a": torch.zeros(9, dtype=torch.int64)}) is None  # larger than a slot
    assert ring.put({"a": torch.arange(4) + 1}).turn == 3
    assert slots.read(3, 8) == slots.read(second.turn, 8) == b"\1" + bytes(7)


def wait_until(holds, limit=20.0):
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_slot_is_free_when_its_last_reader_is_done():
    slots = Slots(1, 64, readers=3)
    assert slots.take() == 0
    for reader in (2, 0):
        slots.free(0, reader)
        assert slots.take() is None
    slots.free(0, 1)
    assert slots.take() == 1


def test_requests_are_shared_out_among_writers_and_each_is_told_of_the_others_files(monkeypatch):
    monkeypatch.setattr(process, "WriterProcess", ToldWriter)
    slots = Slots(4, 64, readers=2)
    writers = WriterProcesses(slots, NO_TOKENIZER)
    for rid in "abc":
        writers.put(begin(rid))
    writers.put(Stepped(slots.take(), NO_ARRAYS, [row("a"), row("b"), row("c")], {}))
    writers.put(Stepped(slots.take(), NO_ARRAYS, [row("b")], {}))
    writers.put(Ended("a", End(finish_reason="stop", output_ids=[], steps=0)))
    writers.put(begin("d"))  # goes where there is less to do
    first, second = (writer.told for writer in writers._writers)
    assert [job.rid for job in first if isinstance(job, Begin)] == ["a", "c", "d"]
    assert [job.rid for job in second if isinstance(job, Begin)] == ["b"]
    assert [[r.rid for r in job.rows] for job in first if isinstance(job, Stepped)] == [["a", "c"]]
    assert [[r.rid for r in job.rows] for job in second if isinstance(job, Stepped)] == [["b"], ["b"]]
    assert [job.being_written for job in first if isinstance(job, Ended)] == [["b.ddviz", "c.ddviz"]]
    assert states(slots)[:2] == [b"\1\1", b"\0\1"]  # the first has nothing of the second step


def test_a_writer_that_died_gives_its_slots_back(tmp_path):
    slots = Slots(4, 64, readers=2)
    writers = WriterProcesses(slots, NO_TOKENIZER)
    for rid in "ab":
        writers.put(begin(rid, tmp_path))
    writers._writers[1]._process.kill()
    writers._writers[1]._process.wait()
    taken, lost = 0, Lost("b", 0, "full")
    deadline = time.monotonic() + 20
    while taken < 12:  # far more steps than slots
        assert time.monotonic() < deadline
        turn = slots.take()
        taken += turn is not None
        writers.put(lost if turn is None else Stepped(turn, NO_ARRAYS, [row("b")], {}))
    wait_until(lambda: set(states(slots)) == {b"\0\0"})
    writers.close(30)


class ToldWriter:
    """Stands for a process, and keeps what it is told."""

    fails: frozenset[int] | set[int] = frozenset()  # readers that do not start
    made: ClassVar[list["ToldWriter"]] = []

    def __init__(self, slots: Slots, tokenizer: Tokenizer, reader: int) -> None:
        self.told: list[Job] = []
        self.reader, self.killed = reader, False
        self.made.append(self)

    def wait(self) -> None:
        if self.reader in self.fails:
            raise RuntimeError("did not start")

    def kill(self) -> None:
        self.killed = True

    def put(self, job: Job) -> None:
        self.told.append(job)


def begin(rid: str, folder: Path = Path()) -> Begin:
    return Begin(rid, str(folder / f"{rid}.ddviz"), header(), [1])


def row(rid: str) -> Row:
    return Row(rid, 0, HostFacts(0, 0, 2, 0, False, 0, 0), "standard", [])


def states(slots: Slots) -> list[bytes]:
    """The readers' bytes of every slot."""
    return [slots.memory[slots._states(i) :][: slots.readers] for i in range(slots.count)]
