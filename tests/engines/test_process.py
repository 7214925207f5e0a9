"""The engine as a process of its own: told what to do, watched, killed, and outliving its parent."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from ddviz.check.doctor import examine, faults
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.process import EngineProcess
from ddviz.errors import BadValueError, EngineError
from ddviz.trace import load
from tests.conftest import made_ready

LONG = 400  # tokens; the tiny engine takes seconds for them


@pytest.fixture(scope="module")
def options(tiny_folders):
    target, draft = map(str, tiny_folders["llama"])
    return EngineOptions(target=target, draft=draft, device="cpu")


@pytest.fixture
def process(engine_process):
    return made_ready(engine_process)


def wait_for(engine, *states, seconds=120):
    deadline = time.time() + seconds
    while time.time() < deadline:
        if engine.status().state in states:
            return engine.status()
        time.sleep(0.01)
    raise AssertionError(f"still {engine.status()}, not {states}; log {engine.log()}")


def wait_until(condition, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "it did not come to pass"
        time.sleep(0.01)


def request(**settings):
    return GenerateParams(**{"prompt": "hello", "mode": "ar", "max_new_tokens": 8, **settings})


def test_a_request_runs_and_leaves_a_trace(process, tmp_path):
    assert process.status().model.block_size == 6
    process.generate(request(), tmp_path / "x.ddviz")
    assert process.status().state in ("prefill", "running", "ready")
    wait_for(process, "ready")
    trace = load(tmp_path / "x.ddviz")
    assert len(trace.end.output_ids) == 8 and trace.damage is None


def test_pause_step_resume_and_stop_reach_the_engine(process, tmp_path):
    path = tmp_path / "x.ddviz"
    process.generate(request(max_new_tokens=LONG), path)
    process.pause()
    wait_for(process, "paused")
    before = len(load(path).steps)
    process.step()
    wait_until(lambda: len(load(path).steps) == before + 1)
    wait_for(process, "paused")
    process.resume()
    wait_until(lambda: len(load(path).steps) > before + 3)
    process.stop()
    wait_for(process, "ready")
    assert load(path).end.finish_reason == "stopped"


def test_what_the_engine_refuses_comes_back_as_one_sentence(process, tmp_path):
    process.generate(request(prompt="x" * 600, chat=False), tmp_path / "x.ddviz")
    wait_for(process, "ready")
    assert "the target's context holds 512" in process.status().error
    assert not (tmp_path / "x.ddviz").exists()


def test_bad_values_and_a_second_request_for_one_trace_are_refused_at_once(process, tmp_path):
    with pytest.raises(BadValueError, match="budget is 0"):
        process.generate(request(budget=0), tmp_path / "x.ddviz")
    process.generate(request(max_new_tokens=LONG), tmp_path / "x.ddviz")
    with pytest.raises(EngineError, match=r"writes .*x\.ddviz already"):
        process.generate(request(), tmp_path / "x.ddviz")


def test_a_trace_that_cannot_be_written_is_said_and_the_engine_goes_on(process, tmp_path):
    (tmp_path / "file").write_text("")
    process.generate(request(), tmp_path / "file" / "x.ddviz")
    wait_for(process, "ready")
    assert "can't write a trace there" in process.status().error
    process.generate(request(), tmp_path / "x.ddviz")
    wait_for(process, "ready")
    assert process.status().error is None and load(tmp_path / "x.ddviz").end is not None


def test_a_killed_engine_is_reported_its_trace_kept_and_another_started(process, tmp_path):
    path = tmp_path / "x.ddviz"
    process.generate(request(max_new_tokens=LONG), path)
    wait_until(lambda: path.exists() and path.stat().st_size and len(load(path).steps) >= 3)
    os.kill(process._child.pid, signal.SIGKILL)
    status = wait_for(process, "off")
    assert "killed by SIGKILL" in status.message and "restart" in status.message
    trace = load(path)
    assert len(trace.steps) >= 3 and trace.end is None
    assert {finding.rule for finding in faults(examine(trace))} <= {"incomplete"}
    process.restart()
    time.sleep(0.2)  # the reader of the dead child has had its say
    assert process.status().state in ("starting", "loading", "ready")
    wait_for(process, "ready")
    process.generate(request(), tmp_path / "y.ddviz")
    wait_for(process, "ready")
    assert load(tmp_path / "y.ddviz").end is not None


PARENT = """
import sys, time
from pathlib import Path
import msgspec
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.process import EngineProcess
engine = EngineProcess(msgspec.json.decode(sys.argv[1], type=EngineOptions))
while engine.status().state != "ready":
    time.sleep(0.01)
engine.generate(GenerateParams(prompt="hello", mode="ar", max_new_tokens=200), Path(sys.argv[2]))
if sys.argv[3] != "running":
    engine.pause()
    while engine.status().state != "paused":
        time.sleep(0.01)
if sys.argv[3] == "stepping":
    engine.step()
print(engine._child.pid, flush=True)
time.sleep(600)
"""


ENDS = {"running": "length", "paused": "stopped", "stepping": "stopped"}


@pytest.fixture(scope="module")
def parents(options, tmp_path_factory):
    """state -> (an app in that state, its trace); started together, since most of it is to import torch."""
    folder, command = tmp_path_factory.mktemp("parents"), [sys.executable, "-c", PARENT]
    encoded = msgspec.json.encode(options).decode()
    started = {}
    for state in ENDS:
        path = folder / f"{state}.ddviz"
        parent = subprocess.Popen([*command, encoded, str(path), state], stdout=subprocess.PIPE, text=True)
        started[state] = parent, path
    yield started
    for parent, _ in started.values():
        parent.kill()
        parent.wait()


@pytest.mark.parametrize(("state", "reason"), ENDS.items())
def test_the_engine_finishes_its_trace_when_the_app_is_killed(parents, state, reason):
    parent, path = parents[state]
    child = int(parent.stdout.readline())
    wait_until(lambda: path.exists() and path.stat().st_size)
    parent.kill()
    parent.wait()
    wait_until(lambda: load(path).end is not None)
    assert load(path).end.finish_reason == reason
    wait_until(lambda: not alive(child))


def alive(pid: int) -> bool:
    """A zombie, whose parent is gone, counts as dead."""
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_target_that_cannot_be_loaded_is_said(tmp_path):
    engine = EngineProcess(EngineOptions(target=str(tmp_path)))
    status = wait_for(engine, "failed")
    assert "could not be loaded" in status.message
    with pytest.raises(EngineError, match="could not be loaded"):
        engine.generate(request(), tmp_path / "x.ddviz")
    engine.close(kill=True)
