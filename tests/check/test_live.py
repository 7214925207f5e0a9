"""The doctor beside an engine that writes: `ddviz doctor --live`."""

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ddviz.check.live import QUIET_S, Watch
from ddviz.errors import TraceError
from ddviz.trace import Recorder, schema
from tests.check.test_doctor import GREEDY, positions_by_index, steps_of
from tests.check.test_doctor_folder import server, write_over
from tests.commands import ROOT, typed
from tests.synthetic import events_of, recorded, token_bytes, write_trace


class Engine:
    """Writes the events of a trace one by one."""

    def __init__(self, path, events):
        self.events = iter(events[2:])
        self.recorder = Recorder(path, events[0], token_bytes, overwrite=True)
        self.recorder.prompt(events[1].token_ids, events[1].text)

    def write(self, count=1):
        for _ in range(count):
            event = next(self.events)
            if isinstance(event, schema.Prefill):
                self.recorder.prefill(event)
            elif isinstance(event, schema.Step):
                self.recorder.step(event)
            else:
                self.recorder.end(event)
                self.recorder.close()

    def finish(self):
        with contextlib.suppress(StopIteration):
            while True:
                self.write()


def told(watch):
    return [(one.path.stem, one.finding and (one.finding.rule, one.finding.step)) for one in watch.poll()]


def sick():
    events = copy.deepcopy(events_of(GREEDY))
    positions_by_index(events)  # step 1
    return events


def test_findings_are_told_with_the_step_that_shows_them_and_once(tmp_path):
    watch, events = Watch(tmp_path), sick()
    assert told(watch) == []
    engine = Engine(tmp_path / "a.ddviz", events)
    engine.write(2)  # the prefill and step 0
    assert told(watch) == []
    engine.write()
    found = told(watch)
    assert set(found) == {("a", ("positions", 1))} and watch.has_faults
    assert told(watch) == []
    engine.write(2)
    assert told(watch) == []
    engine.finish()
    assert told(watch) == [("a", None)]
    assert not watch.is_over and told(watch) == []  # in a folder there may be others


def test_what_only_an_end_shows_waits_for_it(tmp_path):
    events = copy.deepcopy(events_of(GREEDY))
    events[-1].output_ids.pop()
    engine, watch = Engine(tmp_path / "a.ddviz", events), Watch(tmp_path)
    engine.write(len(steps_of(events)) + 1)
    assert told(watch) == []
    engine.write()
    assert told(watch) == [("a", ("output-ids", None)), ("a", None)]


def test_one_file_is_followed_to_its_end(tmp_path):
    path = tmp_path / "a.ddviz"
    engine = Engine(path, events_of(GREEDY))
    watch = Watch(path)
    engine.write(3)
    assert told(watch) == [] and not watch.is_over
    engine.finish()
    (news,) = watch.poll()
    assert news.says == f"ended after {len(steps_of(events_of(GREEDY)))} steps, clean"
    assert watch.is_over and not watch.has_faults


def test_a_new_recording_under_an_old_name_is_examined_anew(tmp_path):
    watch, path = Watch(tmp_path), tmp_path / "a.ddviz"
    write_trace(path, GREEDY)
    assert told(watch) == [("a", None)]
    engine = Engine(path, sick())
    engine.write(3)
    assert ("a", ("positions", 1)) in told(watch)


def test_old_traces_are_left_alone_until_they_are_written_to(tmp_path):
    path = recorded(tmp_path / "old.ddviz", sick())
    long_ago = time.time() - 2 * QUIET_S
    os.utime(path, (long_ago, long_ago))
    watch = Watch(tmp_path)
    assert told(watch) == []
    os.utime(path)
    assert ("old", ("positions", 1)) in told(watch)


def test_requests_that_run_together_are_compared(tmp_path):
    a, b = copy.deepcopy(server(temperature=0.8))
    write_over(steps_of(b)[2], steps_of(a)[0].commit.dst_slots[0])
    engines, watch = [Engine(tmp_path / "a.ddviz", a), Engine(tmp_path / "b.ddviz", b)], Watch(tmp_path)
    for expected in ([], [], [], [("b", ("shared-slots", 2))], []):  # the prefill, steps 0 to 3
        for engine in engines:
            engine.write()
        assert told(watch) == expected


def test_what_is_no_trace_is_told_in_a_folder_and_refused_alone(tmp_path):
    path = tmp_path / "a.ddviz"
    path.write_bytes(b"no trace at all")
    watch = Watch(tmp_path)
    assert told(watch) == [("a", ("incomplete", None))] and told(watch) == []
    with pytest.raises(TraceError, match=r"not a \.ddviz trace"):
        list(Watch(path).poll())
    with pytest.raises(TraceError, match="no such file or folder"):
        Watch(tmp_path / "absent")


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "ddviz.cli", "doctor", "--live", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_findings_until_it_is_interrupted_and_exits_with_1(tmp_path, number):
    with start(tmp_path, "--json") as child:
        assert child.stderr.readline() == f"Following {tmp_path}; Ctrl-C ends it\n"
        Engine(tmp_path / "a.ddviz", sick()).write(3)
        first = json.loads(child.stdout.readline())
        assert (first["trace"], first["rule"], first["step"]) == (str(tmp_path / "a.ddviz"), "positions", 1)
        child.send_signal(number)
        assert child.wait(30) == 1
        assert child.stderr.read() == ""


def test_the_command_exits_with_0_where_nothing_was_found(tmp_path):
    with start(tmp_path) as child:
        child.stderr.readline()
        write_trace(tmp_path / "a.ddviz", GREEDY)
        assert child.stdout.readline().endswith("steps, clean\n")
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0


def test_a_file_that_has_its_end_ends_the_command(tmp_path):
    path = recorded(tmp_path / "a.ddviz", sick())
    done = typed("doctor", "--live", path)
    assert done.returncode == 1
    first, cause, *_, last = done.stdout.splitlines()
    assert first.startswith(f"{path}: positions: step 1 node 2: positions[2] =")
    assert cause == "    likely cause: positions go by node index (the KV slot) instead of depth"
    assert last.startswith(f"{path}: ended after")
    assert typed("doctor", "--live", tmp_path / "none").returncode == 2
