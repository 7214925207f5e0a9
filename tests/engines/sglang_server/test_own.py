"""A server of the app's own, as a real child process: started, paused, stepped, killed, ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddviz.check.doctor import examine, faults
from ddviz.errors import BadValueError, EngineError
from ddviz.trace import load
from tests.engines.sglang_server.conftest import LONG, request, wait_for, wait_until


def steps_of(path) -> int:
    return len(load(path).steps) if path.exists() and path.stat().st_size else 0


def settled_steps(path) -> int:
    """Steps once their number no longer changes; a step of the fake server takes 10 ms."""
    count = -1
    while count != (now := steps_of(path)):
        count = now
        time.sleep(0.2)
    return count


def alive(pid) -> bool:
    """A zombie, whose parent has not asked for it, counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def server_pid(engine) -> int:
    """The process under the keeper."""
    keeper = engine._child._keeper.pid
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def test_loading_is_told_from_its_log_until_it_has_generated(start):
    engine = start("--fake-load-s", "0.05", "--fake-warm-s", "0.3")
    told = [engine.status()]
    while told[-1].state != "ready":
        assert told[-1].state in ("starting", "loading"), told[-1]
        if (now := engine.status()) != told[-1]:
            told.append(now)
        time.sleep(0.002)
    messages = [status.message for status in told]
    for words in ("loading the weights", "capturing CUDA graphs", "waiting for its first answer"):
        assert any(words in message for message in messages), messages
    fractions = [status.progress for status in told if status.progress is not None]
    assert fractions == sorted(fractions) and fractions[-1] >= 0.9
    assert any(
        "50% Completed" in line for line in engine.log()
    )  # a progress bar's carriage returns end lines


def test_before_the_first_request_it_generates_greedily_and_sampled_and_leaves_no_trace_of_that(
    start, tmp_path
):
    engine = start()
    model = wait_for(engine, "ready").model
    assert list((tmp_path / "server").iterdir()) == []
    assert (model.max_budget, model.may_grow, model.view_only) == (16, True, False)
    assert model.modes == ("ddtree", "dflash")
    assert "SGLang 0.5.17" in model.note and "127.0.0.1" in model.note


def test_a_run_is_where_the_app_wants_it_with_the_servers_answer_beside_it(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    path = tmp_path / "runs" / "x.ddviz"
    engine.generate(request(budget=8, topk_cap=2, temperature=0.5), path)
    wait_for(engine, "ready")
    trace = load(path)
    assert trace.end.finish_reason == "length" and trace.damage is None
    assert (trace.header.budget, trace.header.topk_cap) == (8, 2)
    assert faults(examine(trace)) == []
    answer = json.loads((tmp_path / "runs" / "x.response.json").read_text())
    assert answer["output_ids"] == trace.output_ids
    assert list((tmp_path / "server").iterdir()) == []


def test_pause_step_resume_and_stop_reach_the_server(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    path = tmp_path / "x.ddviz"
    engine.generate(request(max_new_tokens=LONG), path)
    wait_until(lambda: steps_of(path) > 3)
    engine.pause()
    wait_for(engine, "paused")
    before = settled_steps(path)
    for count in (1, 2):
        engine.step()
        wait_until(lambda count=count: steps_of(path) == before + count)
        wait_for(engine, "paused")
        assert settled_steps(path) == before + count
    engine.resume()
    wait_until(lambda: steps_of(path) > before + 5)
    engine.step()  # out of a run: one more, then it waits
    wait_for(engine, "paused")
    halted = settled_steps(path)
    engine.stop()  # of a server whose scheduler is held by the gate
    wait_for(engine, "ready")
    assert load(path).end.finish_reason == "stopped"
    assert steps_of(path) <= halted + 1
    engine.generate(request(), tmp_path / "y.ddviz")
    wait_for(engine, "ready")
    assert load(tmp_path / "y.ddviz").end.finish_reason == "length"


def test_a_run_can_begin_with_one_step(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    engine.generate(request(max_new_tokens=LONG), tmp_path / "x.ddviz")
    engine.step()
    wait_for(engine, "paused")
    assert settled_steps(tmp_path / "x.ddviz") == 1


def test_a_paused_run_can_be_stopped(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    engine.generate(request(max_new_tokens=LONG), tmp_path / "x.ddviz")
    wait_until(lambda: steps_of(tmp_path / "x.ddviz") > 1)
    engine.pause()
    engine.stop()
    wait_for(engine, "ready")
    assert load(tmp_path / "x.ddviz").end.finish_reason == "stopped"


def test_a_tree_beyond_its_limits_restarts_it_with_more_and_then_runs(start, tmp_path):
    engine = start("--speculative-ddtree-budget", "20")
    assert wait_for(engine, "ready").model.max_budget == 20
    engine.generate(request(budget=40, topk_cap=0), tmp_path / "x.ddviz")
    assert "larger tree" in engine.status().message or engine.status().state in ("starting", "loading")
    wait_until(lambda: (tmp_path / "x.ddviz").exists())
    model = wait_for(engine, "ready").model
    assert (model.max_budget, model.max_topk_cap) == (40, 40)
    assert load(tmp_path / "x.ddviz").header.budget == 40
    engine.generate(request(budget=20), tmp_path / "y.ddviz")
    assert wait_for(engine, "ready").model.max_budget == 40  # no second restart


def test_a_chain_is_asked_for_as_a_tree_of_width_one(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    engine.generate(request(mode="dflash"), tmp_path / "x.ddviz")
    wait_for(engine, "ready")
    trace = load(tmp_path / "x.ddviz")
    assert (trace.header.budget, trace.header.topk_cap) == (15, 1)
    assert trace.steps[0].tree.parents[1:] == list(range(15))


def test_what_it_refuses_comes_back_as_its_own_sentence(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    engine.generate(request(prompt="word " * 2000, chat=False), tmp_path / "x.ddviz")
    assert "longer than the model's context length (1000)" in wait_for(engine, "ready").error
    engine.generate(request(seed=7), tmp_path / "x.ddviz")
    assert "--enable-deterministic-inference" in wait_for(engine, "ready").error
    assert not (tmp_path / "x.ddviz").exists()
    engine.generate(request(), tmp_path / "x.ddviz")
    assert wait_for(engine, "ready").error is None


def test_bad_values_and_modes_that_it_has_not_are_refused_at_once(start, tmp_path):
    engine = start()
    with pytest.raises(EngineError, match="can't take a request now"):
        engine.generate(request(), tmp_path / "x.ddviz")
    wait_for(engine, "ready")
    with pytest.raises(BadValueError, match="budget is 0"):
        engine.generate(request(budget=0), tmp_path / "x.ddviz")
    with pytest.raises(EngineError, match="can't run mode ar, only ddtree and dflash"):
        engine.generate(request(mode="ar"), tmp_path / "x.ddviz")
    engine.generate(request(max_new_tokens=LONG), tmp_path / "x.ddviz")
    with pytest.raises(EngineError, match="runs a request already"):
        engine.generate(request(), tmp_path / "y.ddviz")


def test_a_trace_that_cannot_be_written_is_said_and_the_server_goes_on(start, tmp_path):
    engine = start()
    wait_for(engine, "ready")
    (tmp_path / "file").write_text("")
    engine.generate(request(), tmp_path / "file" / "x.ddviz")
    assert "can't write a trace there" in wait_for(engine, "ready").error
    assert len(list((tmp_path / "server").iterdir())) == 1  # the server's own stays
    engine.generate(request(), tmp_path / "x.ddviz")
    assert wait_for(engine, "ready").error is None


def test_a_server_that_dies_is_reported_its_trace_kept_and_another_started(start, tmp_path):
    engine = start("--fake-dies", "die now")
    wait_for(engine, "ready")
    path = tmp_path / "x.ddviz"
    engine.generate(request(prompt="die now", chat=False, max_new_tokens=LONG), path)
    status = wait_for(engine, "off")
    sentence, *log = status.message.split("\n")
    assert sentence.startswith(
        "the SGLang server was killed by SIGKILL: RuntimeError: CUDA error: an illegal"
    )
    assert sentence.endswith("what it traced is kept; start it again below")
    assert any("fired up" in line for line in log)
    trace = load(path)
    assert len(trace.steps) == 3 and trace.end is None
    assert status.remedy == "Start the server again"
    engine.restart()
    wait_until(lambda: engine.status().state != "off")
    wait_for(engine, "ready")
    engine.generate(request(), tmp_path / "y.ddviz")
    wait_until(lambda: (tmp_path / "y.ddviz").exists() and load(tmp_path / "y.ddviz").end is not None)
    wait_for(engine, "ready")


def test_a_server_that_does_not_start_says_why(start):
    engine = start("--fake-refuses-to-start", "DDTREE needs --page-size 1, got 16")
    message = wait_for(engine, "off").message
    assert message.startswith(
        "the SGLang server ended with exit code 1: ValueError: DDTREE needs --page-size 1, got 16; what"
    )


def test_a_server_without_tracing_is_of_no_use_and_ended(start, monkeypatch):
    monkeypatch.setattr("ddviz.engines.sglang_server.engine.TRACE_S", 0.2)
    engine = start("--fake-no-traces")
    message = wait_for(engine, "failed").message
    assert "answers but writes no trace into" in message
    wait_until(lambda: engine._log_of.is_running() is False)


def test_closing_ends_every_process_of_it(start):
    engine = start()
    wait_for(engine, "ready")
    pid = server_pid(engine)
    engine.close()
    assert not alive(pid)


def test_processes_that_ignore_sigterm_are_killed_after_the_grace_period(start, tmp_path):
    engine = start("--fake-stubborn", str(tmp_path / "ids"), grace_s=0.5)
    wait_for(engine, "ready")
    pids = (tmp_path / "ids").read_text().split()
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began >= 0.5
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_what_a_dead_server_leaves_behind_is_killed_at_once(start, tmp_path):
    """A scheduler without its server would hold the GPU."""
    engine = start("--fake-stubborn", str(tmp_path / "ids"))
    wait_for(engine, "ready")
    leader, other = (tmp_path / "ids").read_text().split()
    os.kill(int(leader), signal.SIGKILL)
    wait_for(engine, "off")
    wait_until(lambda: not alive(other))


PARENT = """
import sys, time
from pathlib import Path
from ddviz.engines.sglang_server.own import OwnServer, ServerOptions
launch = (sys.executable, "-m", "tests.fake_sglang")
engine = OwnServer(ServerOptions("t", "d", ("--fake-stubborn", sys.argv[2]), launch), Path(sys.argv[1]), 0.5)
while engine.status().state != "ready":
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def test_no_process_is_left_when_the_app_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "server"), str(tmp_path / "ids")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout.readline() == "ready\n"
    pids = (tmp_path / "ids").read_text().split()
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_the_command_leaves_the_last_word_to_the_user_where_it_may(start):
    engine = start("--attention-backend", "triton", "--tp", "2", "--speculative-ddtree-budget", "32")
    command = engine._command(30000)
    joined = " ".join(command)
    assert joined.index("--speculative-ddtree-budget 16") < joined.index("--speculative-ddtree-budget 32")
    for words in ("--tp 2", "--host 127.0.0.1 --port 30000", "--disable-overlap-schedule"):
        assert words in joined
