"""Several requests in one engine process: in turns, each as if it were alone, each with its own control."""

import itertools
import time
from datetime import datetime
from itertools import pairwise

import pytest

from ddviz.check.doctor import examine, faults
from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.record import Recording
from ddviz.errors import EngineError
from ddviz.trace import load
from tests.conftest import made_ready
from tests.engines.test_process import wait_until

LONG = 400  # tokens; the tiny engine takes seconds for them
PROMPTS = ("hello", "one two three", "x = 1", "the fourth")


@pytest.fixture
def process(engine_process):
    return made_ready(engine_process)


def request(prompt, **settings):
    # a seed with which none of the prompts meets a stop token soon
    wanted = {"mode": "ddtree", "max_new_tokens": 60, "temperature": 1.0, "seed": 4, "budget": 8}
    return GenerateParams(prompt=prompt, **{**wanted, **settings})


def steps(path):
    return len(load(path).steps) if path.exists() and path.stat().st_size else 0


def recorded(path):
    """What a run did: all of its steps but the times and the number of the forward."""
    trace = load(path)
    whole = [trace.steps[i] for i in range(len(trace.steps))]
    for step in whole:
        step.times_us, step.batch.id = {}, 0
    return trace.end.output_ids, whole


def test_four_requests_take_turns_step_by_step_and_each_does_what_it_does_alone(process, tmp_path):
    alone, together = ([tmp_path / f"{how}-{i}.ddviz" for i in range(4)] for how in ("alone", "together"))
    for prompt, path in zip(PROMPTS, alone, strict=True):
        process.generate(request(prompt), path)
        wait_until(lambda: not process.runs())
    blocker = tmp_path / "blocker.ddviz"  # while it reads its prompt, all four are asked for
    process.generate(request("x" * 450, chat=False, budget=60, max_new_tokens=4), blocker)
    for prompt, path in zip(PROMPTS, together, strict=True):
        process.generate(request(prompt), path)
    wait_until(lambda: not process.runs())
    for one, other in zip(alone, together, strict=True):
        assert recorded(one) == recorded(other)
        assert faults(examine(load(other))) == []
    forwards = [[step.batch.id for step in load(path).steps] for path in together]
    begin, end = max(ids[0] for ids in forwards), min(ids[-1] for ids in forwards)
    rounds = [[i for i in ids if begin <= i <= end] for ids in forwards]  # while all four are under way
    assert min(map(len, rounds)) >= 40
    assert max(map(len, rounds)) - min(map(len, rounds)) <= 1
    after_blocker = max(step.batch.id for step in load(blocker).steps)
    for ids in rounds:
        gaps = [b - a for a, b in pairwise(ids) if a > after_blocker]
        assert set(gaps) == {4}, "one forward of each of the others lies between two steps"


def test_one_is_paused_and_stopped_while_the_other_runs_on(process, tmp_path):
    halted, other = tmp_path / "halted.ddviz", tmp_path / "other.ddviz"
    process.generate(request("hello", max_new_tokens=LONG), halted)
    process.pause(halted)
    process.generate(request("hello", max_new_tokens=LONG, seed=2), other)
    wait_until(lambda: process.status_of(halted).state == "paused")
    before, others = steps(halted), steps(other)
    wait_until(lambda: steps(other) > others + 5)
    assert steps(halted) == before
    assert process.status_of(other).state == "running"
    assert process.status_of(None).state == "ready"
    assert process.runs() == [halted, other]
    process.step(halted)
    wait_until(lambda: steps(halted) == before + 1)
    process.stop(halted)
    wait_until(lambda: process.status_of(halted).state == "ready")
    assert load(halted).end.finish_reason == "stopped"
    assert process.runs() == [other]
    process.stop(other)
    wait_until(lambda: not process.runs())
    assert load(other).end.finish_reason == "stopped"


def test_what_one_request_meets_is_said_to_it_alone(process, tmp_path):
    (tmp_path / "file").write_text("")
    bad, good = tmp_path / "file" / "x.ddviz", tmp_path / "good.ddviz"
    process.generate(request("hello", max_new_tokens=LONG), good)
    process.generate(request("hello"), bad)
    wait_until(lambda: process.status_of(bad).error)
    assert "can't write a trace there" in process.status_of(bad).error
    assert process.status_of(good).error is None and process.status_of(None).error is None
    process.stop(good)


def test_no_more_are_taken_than_it_runs_at_once(process, tmp_path):
    paths = [tmp_path / f"{i}.ddviz" for i in range(process.runs_at_once + 1)]
    for path in paths[:-1]:
        process.generate(request("hello", max_new_tokens=LONG), path)
        process.pause(path)
    with pytest.raises(EngineError, match=f"it runs {process.runs_at_once} already"):
        process.generate(request("hello"), paths[-1])
    process.stop(paths[0])
    wait_until(lambda: len(process.runs()) < process.runs_at_once)
    process.generate(request("hello"), paths[-1])
    wait_until(lambda: process.status_of(paths[-1]).state == "ready")
    assert load(paths[-1]).end is not None


def test_durations_do_not_follow_a_clock_that_is_set_back(tiny_folders, tmp_path, monkeypatch):
    """Every look at the wall clock finds it an hour earlier than the one before."""
    from ddviz.engines.torch_engine import record
    from ddviz.engines.torch_engine.engine import TorchEngine
    from ddviz.engines.torch_engine.models import load_pair

    now, clock = time.time(), itertools.count()

    class SetBack(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(now - 3600 * next(clock), tz)

    monkeypatch.setattr(record, "datetime", SetBack)
    monkeypatch.setattr(time, "time", lambda: now - 3600 * next(clock))
    engine, path = TorchEngine(load_pair(*map(str, tiny_folders["llama"]))), tmp_path / "x.ddviz"
    with Recording(path) as recording:
        engine.generate(request("hello"), recording)
    assert next(clock) > 0, "it was looked at"
    trace = load(path)
    stages = [us for step in trace.steps for us in step.times_us.values()]
    assert min(stages) >= 0 and trace.prefills[0][1].time_us >= 0
    assert 0 < sum(stages) <= trace.end.time_us < 3600e6
    assert faults(examine(trace)) == []
