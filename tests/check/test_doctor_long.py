"""A long trace is shared among processes; what is found is the same."""

import copy

import msgspec
import pytest

from ddviz.check import doctor, helper
from ddviz.check.doctor import MOST_PER_RULE, Examination, examine, examine_path
from ddviz.check.helper import Helpers
from ddviz.trace import load
from ddviz.trace.frames import compress_line, decompress_frame, new_compressor, next_frame
from tests.check.test_doctor import LONG, steps_of
from tests.synthetic import events_of, recorded


@pytest.fixture
def shared(monkeypatch):
    """Every file counts as long, for three processes; the names of what was started."""
    started = []
    monkeypatch.setattr(doctor, "LONG", 0)
    monkeypatch.setattr(doctor, "cores", lambda: 3)
    monkeypatch.setattr(doctor, "Helpers", lambda count: started.append(count) or Helpers(count))
    return started


def sick(tmp_path):
    """Faults in every part of the trace, of one rule more than are listed."""
    events = copy.deepcopy(events_of(LONG))
    steps = steps_of(events)
    for step in steps:
        step.positions = [position + 1 for position in step.positions]
    for step in (steps[0], steps[len(steps) // 2], steps[-1]):
        step.commit.committed_len += 1
    steps[-2].batch.id = 0
    return recorded(tmp_path / "sick.ddviz", events)


def test_what_several_processes_find_is_what_one_finds(tmp_path, shared):
    path = sick(tmp_path)
    alone = examine(load(path))
    assert examine_path(path) == {path: alone}
    assert shared == [2]
    assert {"positions", "commit", "batch-order"} <= {finding.rule for finding in alone}
    assert sum(finding.rule == "positions" for finding in alone) == MOST_PER_RULE + 1
    assert examine_path(path, ["commit"])[path] == examine(load(path), ["commit"])


def test_a_trace_of_fewer_steps_than_processes(tmp_path, shared):
    events = copy.deepcopy(events_of(LONG))
    for step in steps_of(events)[1:]:
        events.remove(step)
    path = recorded(tmp_path / "one.ddviz", events)
    assert examine_path(path)[path] == examine(load(path))


@pytest.mark.parametrize("place", [1, -1])
def test_a_step_that_is_none_is_damage_as_ever(tmp_path, shared, place):
    """Its frame is whole: only whoever decodes it sees that it is no step."""
    path = sick(tmp_path)
    data, lines, at = path.read_bytes(), [], 0
    while at < len(data):
        frame = next_frame(data, at)
        lines.append(decompress_frame(data, frame).rstrip(b"\n"))
        at += frame.size
    steps = [k for k, line in enumerate(lines) if line.startswith(b'{"event":"step"')]
    lines[steps[place]] = b'{"event":"step","index":"seven"}'
    compressor = new_compressor()
    path.write_bytes(b"".join(compress_line(line, compressor) for line in lines))
    alone = examine(load(path))
    assert examine_path(path) == {path: alone}
    assert any("an event is not valid" in finding.message for finding in alone)


def test_a_helper_that_dies_is_done_without(tmp_path, shared, monkeypatch):
    path = sick(tmp_path)
    monkeypatch.setattr(helper.sys, "executable", "/bin/false")
    assert examine_path(path) == {path: examine(load(path))}


def test_a_result_survives_the_way_between_processes(tmp_path):
    trace = load(sick(tmp_path))
    half = len(trace.steps) // 2
    first, second = Examination(trace.header), Examination(trace.header)
    first.take(trace.steps[:half])
    second.take(trace.steps[half:])
    first.join(second.result())
    assert first.findings(trace) == examine(trace)
    with pytest.raises(msgspec.MsgspecError):
        first.join(b"")
