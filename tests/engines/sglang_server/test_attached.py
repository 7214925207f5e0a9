"""A server that somebody else has started: asked, followed, otherwise left alone."""

import threading
import time
from pathlib import Path

import pytest

from ddviz.engines.sglang_server import copying
from ddviz.engines.sglang_server.api import Api, UnreachableError
from ddviz.errors import BadValueError
from ddviz.trace import load
from tests.engines.sglang_server.conftest import LONG, request, wait_for, wait_until


def steps_of(path) -> int:
    return len(load(path).steps) if path.exists() and path.stat().st_size else 0


def test_a_run_is_copied_and_the_servers_own_trace_stays(elsewhere, attach, tmp_path):
    server = elsewhere()
    engine = attach(server.url)
    model = wait_for(engine, "ready").model
    assert (model.max_budget, model.max_topk_cap, model.may_grow, model.view_only) == (16, 4, False, True)
    engine.generate(request(), tmp_path / "x.ddviz")
    wait_for(engine, "ready")
    (original,) = (tmp_path / "elsewhere").iterdir()
    assert original.read_bytes() == (tmp_path / "x.ddviz").read_bytes()
    asked = server.asked[-1]
    assert asked["sampling_params"]["custom_params"] == {
        "ddviz": {"level": "standard"},
        "ddtree": {"budget": 16, "topk_cap": 4},
    }
    assert "input_ids" in asked and "text" not in asked  # through the target's chat template


def test_sampling_settings_are_passed_in_sglangs_words(elsewhere, attach, tmp_path):
    server = elsewhere()
    engine = attach(server.url)
    wait_for(engine, "ready")
    engine.generate(request(temperature=0.6, top_p=0.9, chat=False), tmp_path / "x.ddviz")
    wait_for(engine, "ready")
    sampling = server.asked[-1]["sampling_params"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.6, 0.9, -1)
    assert "sampling_seed" not in sampling
    assert server.asked[-1]["text"] == "hello there"


def test_pause_and_step_halt_the_view_and_never_the_server(elsewhere, attach, tmp_path):
    server = elsewhere()
    engine = attach(server.url)
    wait_for(engine, "ready")
    path = tmp_path / "x.ddviz"
    engine.generate(request(max_new_tokens=300), path)
    wait_until(lambda: steps_of(path) > 2)
    engine.pause()
    assert "the server runs on" in wait_for(engine, "paused").message
    (original,) = (tmp_path / "elsewhere").iterdir()
    before, there = steps_of(path), steps_of(original)
    wait_until(lambda: steps_of(original) > there + 3)
    assert steps_of(path) == before
    engine.step()
    wait_until(lambda: steps_of(path) == before + 1)
    time.sleep(0.1)
    assert steps_of(path) == before + 1
    engine.resume()
    wait_for(engine, "ready")
    assert path.read_bytes() == original.read_bytes()
    assert not {"/pause_generation", "/continue_generation"} & set(server.calls)


def test_stop_aborts_the_request_also_where_its_view_is_paused(elsewhere, attach, tmp_path):
    engine = attach(elsewhere().url)
    wait_for(engine, "ready")
    path = tmp_path / "x.ddviz"
    engine.generate(request(max_new_tokens=LONG), path)
    wait_until(lambda: steps_of(path) > 2)
    engine.pause()
    wait_for(engine, "paused")
    engine.stop()
    wait_for(engine, "ready")
    assert load(path).end.finish_reason == "stopped"


def test_a_tree_beyond_its_limits_is_refused_with_the_flag_that_would_allow_it(elsewhere, attach, tmp_path):
    engine = attach(elsewhere(budget=16, topk_cap=4).url)
    wait_for(engine, "ready")
    with pytest.raises(BadValueError, match=r"budget is 17, .* with 16; .*--speculative-ddtree-budget 17"):
        engine.generate(request(budget=17), tmp_path / "x.ddviz")
    with pytest.raises(BadValueError, match=r"topk_cap is 5, .* with 4; .*--speculative-ddtree-topk-cap 5"):
        engine.generate(request(budget=8, topk_cap=5), tmp_path / "x.ddviz")


def test_it_is_found_when_it_comes_and_missed_when_it_goes(elsewhere, attach):
    first = elsewhere()
    engine = attach(first.url)
    wait_for(engine, "ready")
    port = int(first.url.rsplit(":", 1)[1])
    first.close()
    assert wait_for(engine, "off").message.startswith(f"no server answers at {first.url}")
    elsewhere(port=port)
    wait_for(engine, "ready")


def test_a_server_without_tracing_is_told_in_one_sentence(elsewhere, attach, tmp_path, monkeypatch):
    monkeypatch.setattr("ddviz.engines.sglang_server.engine.TRACE_S", 0.2)
    server = elsewhere(traces=False)
    engine = attach(server.url)
    message = wait_for(engine, "failed").message
    assert "answers but writes no trace into" in message
    assert f"start it with DDVIZ_TRACE_DIR={tmp_path / 'elsewhere'}" in message
    asked = len(server.asked)
    time.sleep(0.5)
    assert len(server.asked) == asked  # nobody's server is asked again and again
    server.traces = tmp_path / "elsewhere"
    engine.restart()
    wait_for(engine, "ready")


def test_a_server_without_ddviz_is_told_what_to_install(elsewhere, attach, monkeypatch):
    monkeypatch.setattr("ddviz.engines.sglang_server.engine.TRACE_S", 0.2)
    engine = attach(elsewhere(has_plugin=False, algorithm=None).url)
    assert "it needs ddviz (pip install" in wait_for(engine, "failed").message


def test_a_server_with_a_key_is_told_and_left_alone(elsewhere, attach):
    server = elsewhere(key="secret")
    engine = attach(server.url)
    assert "wants an API key" in wait_for(engine, "failed").message
    asked = len(server.calls)
    time.sleep(0.5)
    assert len(server.calls) == asked


@pytest.mark.parametrize(("key", "state"), [("secret", "ready"), ("wrong", "failed")])
def test_the_key_of_a_server_is_read_from_the_environment(elsewhere, attach, monkeypatch, key, state):
    monkeypatch.setenv("DDVIZ_API_KEY", key)
    engine = attach(elsewhere(key="secret").url)
    message = wait_for(engine, state).message
    assert state == "ready" or "refuses the API key in DDVIZ_API_KEY" in message


def test_a_server_with_another_algorithm_takes_requests_as_it_was_started(elsewhere, attach, tmp_path):
    server = elsewhere(algorithm="EAGLE3", version="0.5.20")
    engine = attach(server.url)
    model = wait_for(engine, "ready").model
    assert (model.modes, model.algorithm) == (("server",), "EAGLE3")
    assert "0.5.20 (ddviz is tested with 0.5.17)" in model.note
    engine.generate(request(mode="server", budget=500), tmp_path / "x.ddviz")
    wait_for(engine, "ready")
    assert "ddtree" not in server.asked[-1]["sampling_params"]["custom_params"]
    assert load(tmp_path / "x.ddviz").end is not None


def test_a_damaged_trace_is_said(elsewhere, attach, tmp_path):
    server = elsewhere(step_s=0.05)
    engine = attach(server.url)
    wait_for(engine, "ready")
    path = tmp_path / "x.ddviz"
    engine.generate(request(max_new_tokens=LONG), path)
    wait_until(lambda: steps_of(path) > 1)
    (original,) = (tmp_path / "elsewhere").iterdir()
    with open(original, "ab") as file:
        file.write(b"no frame at all" * 10_000)  # more than the server writes over before it is read
    assert "the server's trace is damaged" in wait_for(engine, "ready").error


def test_a_trace_that_the_server_deletes_meanwhile_is_read_to_its_end(elsewhere, attach, tmp_path):
    engine, path = attach(elsewhere().url), tmp_path / "x.ddviz"
    wait_for(engine, "ready")
    engine.generate(request(max_new_tokens=100), path)
    wait_until(lambda: steps_of(path) > 2)
    engine.pause()
    wait_for(engine, "paused")
    (original,) = (tmp_path / "elsewhere").iterdir()
    wait_until(lambda: load(original).end is not None)
    whole = original.read_bytes()
    original.unlink()
    engine.resume()
    assert wait_for(engine, "ready").error is None
    assert path.read_bytes() == whole


def test_a_server_that_dies_while_its_view_is_paused_is_missed(elsewhere, attach, tmp_path):
    engine, path, gone = attach(elsewhere().url), tmp_path / "x.ddviz", threading.Event()
    wait_for(engine, "ready")
    ask = engine._server.generate

    def generate(asked):
        threading.Thread(target=ask, args=(asked,), daemon=True).start()
        gone.wait()
        raise UnreachableError("no answer")

    engine._server.generate = generate
    engine.generate(request(max_new_tokens=100), path)
    wait_until(lambda: steps_of(path) > 2)
    engine.pause()
    wait_for(engine, "paused")
    gone.set()
    assert "no server answers" in wait_for(engine, "off").message


def test_traces_that_may_not_be_read_are_told(elsewhere, attach, tmp_path, monkeypatch):
    """As it is where nobody has let the user that runs ddviz into the server's folder."""

    def refused(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    said = wait_for(attach(elsewhere().url), "failed").message
    assert "can't read the server's traces there (Permission denied)" in said


def test_a_trace_that_can_not_be_opened_ends_the_run_with_a_sentence(
    elsewhere, attach, tmp_path, monkeypatch
):
    engine = attach(elsewhere().url)
    wait_for(engine, "ready")
    monkeypatch.setattr(copying, "find_trace", lambda folder, ending: folder)  # a folder is no file
    engine.generate(request(), tmp_path / "x.ddviz")
    assert "can't read the server's traces there" in wait_for(engine, "ready").error


def test_an_unexpected_error_ends_the_run_too(elsewhere, attach, tmp_path, monkeypatch):
    engine = attach(elsewhere().url)
    wait_for(engine, "ready")
    monkeypatch.setattr(copying, "next_frame", lambda *given: 1 / 0)
    engine.generate(request(), tmp_path / "x.ddviz")
    assert "ZeroDivisionError" in wait_for(engine, "ready").error


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ([1, 2], "is another server there?"),
        ("ok", "is another server there?"),
        ({}, "is another server there?"),
        ({"model_path": "x", "context_length": "many"}, "makes no sense"),
    ],
)
def test_what_is_no_sglang_server_is_told(elsewhere, attach, monkeypatch, info, sentence):
    monkeypatch.setattr(Api, "_ask", lambda *given, **more: info)
    assert sentence in wait_for(attach(elsewhere().url), "failed").message
