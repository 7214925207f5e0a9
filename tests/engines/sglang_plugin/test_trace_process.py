"""The writer as a process of its own: it writes what it is told, outlives a killed server, harms nobody."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from ddviz.check.doctor import examine
from ddviz.engines.sglang_plugin.tracing import process
from ddviz.engines.sglang_plugin.tracing.jobs import Array, Begin, Ended, Job, Layout, Lost, Row, Stepped
from ddviz.engines.sglang_plugin.tracing.process import Tokenizer, WriterProcesses, token_bytes_of
from ddviz.engines.sglang_plugin.tracing.ring import Ring, Sent
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
    wait_until(lambda: (engine.writer.put(Lost("a", 0, "")), "has ended" in caplog.text)[1])
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
    assert ring.put({"a": torch.arange(4) + 1}).turn == 3  # the turn of the slot that is held is passed over
    assert slots.read(3, 8) == slots.read(second.turn, 8) == b"\1" + bytes(7)
    slots.free(first.turn)
    with pytest.raises(ValueError, match="do not fit"):
        ring.put({"a": torch.zeros(9, dtype=torch.int64)})
    assert ring.put({"a": torch.arange(4)}).turn == 4


def test_what_the_device_writes_lies_in_its_slot_alone():
    """More than the lanes of one block; a slot that is filled to its end; turns that come round."""
    slots = Slots(3, 20_000, readers=2)
    ring = Ring(slots, "cpu")
    written = {}
    for turn in range(5):
        size = 20_000 if turn % 2 else 19_992
        written[turn % 3] = torch.randint(0, 255, (size,), dtype=torch.uint8)
        ring.write(written[turn % 3])
        assert int(ring.turn) == turn + 1
        for slot, values in written.items():
            assert slots.read(slot, len(values)) == values.numpy().tobytes()
    assert set(states(slots)) == {b"\0\0"}
    with pytest.raises(ValueError, match="20008 bytes do not fit"):
        ring.write(torch.zeros(20_008, dtype=torch.uint8))
    assert int(ring.turn) == 5


def test_more_of_a_step_follows_what_the_device_wrote():
    slots = Slots(2, 64, readers=2)
    ring = Ring(slots, "cpu")
    ring.write(torch.arange(16, dtype=torch.uint8))
    sent = Sent(slots.take(), Layout.of([Array("a", (13,), "uint8", 13, True)]))
    more = ring.add(sent, {"b": torch.tensor([1.5])})
    assert slots.read(more.turn, more.layout.size) == bytes(range(13)) + b"\x00\x00\xc0\x3f"
    with pytest.raises(ValueError, match="do not fit"):
        ring.add(sent, {"b": torch.zeros(16)})


def test_a_turn_that_is_passed_over_is_passed_over_by_both():
    slots = Slots(3, 64)
    ring = Ring(slots, "cpu")
    for _ in range(3):
        assert ring.has_room()
        ring.write(torch.zeros(8, dtype=torch.uint8))
        slots.take()
    assert not ring.has_room()
    slots.free(2)
    assert ring.has_room() and int(ring.turn) == slots.turn == 5
    ring.write(torch.full((8,), 7, dtype=torch.uint8))
    assert slots.read(slots.take(), 8) == slots.read(2, 8) == bytes([7] * 8)


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
        assert slots.ahead() is None
    slots.free(0, 1)
    assert slots.ahead() == 0


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
    for _ in range(4):
        writers.put(Stepped(slots.take(), NO_ARRAYS, [row("a"), row("b")], {}))
    wait_until(lambda: (writers.put(Lost("a", 0, "full")), set(states(slots)) == {b"\0\0"})[1])
    writers.close(30)


def test_a_writer_that_died_without_a_word_to_write_gives_its_slots_back(tmp_path):
    """Its pipe is never written to again, yet the slots that it was told of are free for others."""
    slots = Slots(2, 64, readers=2)
    writers = WriterProcesses(slots, NO_TOKENIZER)
    for rid in "ab":
        writers.put(begin(rid, tmp_path))
    os.kill(writers._writers[1]._process.pid, signal.SIGSTOP)  # it reads no more
    for _ in range(2):
        writers.put(Stepped(slots.take(), NO_ARRAYS, [row("b")], {}))
    wait_until(lambda: not writers._writers[1]._outbox.behind)
    writers._writers[1]._process.kill()
    writers._writers[1]._process.wait()
    assert slots.ahead() is None
    writers.put(Lost("a", 0, "full"))
    assert slots.ahead() == 0
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
