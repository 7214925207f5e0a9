"""Live without a browser: the form, the session and the engine, on a FakeEngine."""

import gradio as gr
import msgspec
import pytest

from ddviz.app.live import DEFAULTS, Form, live_tab, offers, params, show_request, values
from ddviz.app.panels import poll_function, requests_function, status_function
from ddviz.app.session import Session
from ddviz.app.traces import Registry
from ddviz.engines.base import GenerateParams
from ddviz.errors import DdvizError, EngineError, TraceError
from ddviz.trace import load
from tests.app import fake_engine
from tests.app.conftest import wait_until
from tests.viewer.fixtures import write_trace

LONG = GenerateParams(prompt="first words", max_new_tokens=100_000)
SHORT = GenerateParams(prompt="first words", max_new_tokens=30)


def form(**changes) -> Form:
    fields = {name: getattr(DEFAULTS, name) for name in Form._fields}
    return Form(**{**fields, "seed": "", **changes})


def state(session) -> str:
    return session.status().state


# --- the form


def test_the_form_as_it_stands_is_the_default_request():
    assert params(form()) == DEFAULTS


def test_numbers_arrive_as_the_browser_sends_them():
    asked = params(form(budget=1024.0, topk_cap=0, temperature=1, top_p=0.5, seed=" 7 "))
    assert (asked.budget, asked.topk_cap, asked.temperature, asked.top_p, asked.seed) == (
        1024,
        0,
        1.0,
        0.5,
        7,
    )
    assert isinstance(asked.budget, int)
    assert isinstance(asked.temperature, float)


@pytest.mark.parametrize(
    "changes", [{"budget": 1}, {"budget": 1024}, {"temperature": 1e-9}, {"temperature": 100}]
)
def test_the_ends_of_the_ranges_work(changes):
    params(form(**changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "  \n "}, "the prompt is empty"),
        ({"prompt": None}, "the prompt is empty"),
        ({"prompt": "half a pair \ud83d"}, "the prompt is no valid UTF-8 text: character 13 is a broken one"),
        ({"temperature": -1}, "temperature is -1, must be a finite number >= 0"),
        ({"temperature": None}, "Temperature is empty"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"budget": 0}, "budget is 0, must be from 1 to 1024"),
        ({"budget": 1025}, "budget is 1025"),
        ({"budget": 2.5}, "Budget is 2.5, must be a whole number"),
        ({"budget": "16"}, "Budget"),
        ({"budget": float("inf")}, "Budget is inf, must be a whole number"),
        ({"topk_cap": -1}, "topk_cap is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_k": -3}, "top_k is -3"),
        ({"max_new_tokens": 0}, "max tokens is 0"),
        ({"seed": "-1"}, "seed is -1"),
        ({"seed": str(2**63)}, "seed is 9223372036854775808"),
        ({"seed": "first"}, "Seed is first, must be a whole number"),
        ({"seed": "9" * 5000}, "must be a whole number"),
        ({"mode": "eagle"}, "the mode must be one of"),
        ({"mode": None}, "the mode must be one of"),
    ],
)
def test_a_bad_field_gets_one_sentence(changes, sentence):
    with pytest.raises(DdvizError) as caught:
        params(form(**changes))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# --- a run


def test_a_run_is_written_to_the_runs_folder_under_its_name(session, folders):
    run = session.generate(SHORT)
    wait_until(lambda: state(session) == "ready")
    assert run.path.parent == folders[1]
    assert run.path.name.endswith("-ddtree-first-words.ddviz")
    assert load(run.path).end.finish_reason == "length"


def test_the_viewer_follows_the_run_to_its_end(session):
    poll = poll_function(session)
    run = session.generate(SHORT)
    answer, rows = poll({"trace": run.trace, "since": 0}), []
    assert answer["status"]["state"] in ("prefill", "running")
    while answer["end"] is None:
        answer = poll({"trace": run.trace, "since": len(rows)})
        rows += answer["steps"]
    assert [row["i"] for row in rows] == list(range(len(load(run.path).steps)))


def test_pause_step_resume_stop(session, engine):
    run = session.generate(LONG)
    wait_until(lambda: state(session) == "running")
    session.control("pause")
    wait_until(lambda: state(session) == "paused")
    before = len(load(run.path).steps)
    session.control("step")
    wait_until(lambda: len(load(run.path).steps) > before)
    wait_until(lambda: state(session) == "paused")
    assert len(load(run.path).steps) == before + 1
    session.control("resume")
    wait_until(lambda: len(load(run.path).steps) > before + 3)
    session.control("stop")
    wait_until(lambda: state(session) == "ready")
    assert load(run.path).end.finish_reason == "stopped"


def test_step_begins_a_run_that_halts_after_its_first_step(session, engine):
    engine.may_begin.clear()
    run = session.generate(LONG, one_step=True)
    engine.may_begin.set()
    wait_until(lambda: state(session) == "paused")
    assert len(load(run.path).steps) == 1


def test_a_second_run_is_refused_while_one_is_at_work(session):
    run = session.generate(LONG)
    with pytest.raises(EngineError, match="stop it first"):
        session.generate(SHORT)
    assert session.run is run


def test_bad_parameters_never_reach_the_engine(session, engine):
    with pytest.raises(DdvizError, match="prompt is empty"):
        session.generate(GenerateParams(prompt=" "))
    assert engine.calls == []
    assert session.run is None


def test_a_run_that_the_engine_refuses_leaves_the_one_before_on_screen(session, engine):
    first = session.generate(SHORT)
    wait_until(lambda: state(session) == "ready")
    engine.refusal = "the prompt has 9,000 tokens, the context holds 8,192; shorten it"
    with pytest.raises(EngineError, match="shorten it"):
        session.generate(SHORT)
    status = status_function(session)({})
    assert "shorten it" in status["error"]
    assert status["run"] == {
        "trace": first.trace,
        "live": False,
        "nonce": first.nonce,
        "link": f"run:{first.path.stem}",
    }


def test_an_engine_that_dies_keeps_the_trace_and_says_so(session, engine):
    run = session.generate(LONG)
    wait_until(lambda: run.path.exists() and run.path.stat().st_size and len(load(run.path).steps) > 2)
    engine.be("off", "the engine was killed by SIGKILL\nlast line of its log")
    status = status_function(session)({})
    assert (status["state"], status["run"]["live"]) == ("off", False)
    answer = poll_function(session)({"trace": run.trace, "since": 0})
    assert answer["total"] > 2
    assert "no end was recorded" in answer["damage"]
    assert "status" not in answer
    session.control("restart")
    assert state(session) == "ready"


def test_an_engine_that_could_not_load_says_that_replay_works(session, engine):
    engine.be("failed", "the demo target is not in the cache and PyPI can't be reached; connect once\nlog")
    assert status_function(session)({})["message"] == (
        "the demo target is not in the cache and PyPI can't be reached; connect once; "
        "Replay works without an engine\nlog"
    )


def test_a_page_that_is_reloaded_finds_the_run_and_its_settings(session):
    asked = GenerateParams(prompt="other words", budget=7, temperature=0.5, max_new_tokens=100_000)
    run = session.generate(asked)
    link = f"run:{run.path.stem}"
    assert session.viewer_value() == {"trace": run.trace, "live": True, "nonce": run.nonce, "link": link}
    assert values(session) == form(prompt="other words", budget=7, temperature=0.5, max_new_tokens=100_000)


def test_a_page_that_opens_later_starts_with_the_tree_measured_to_be_fastest(session, monkeypatch):
    """The page is built before the engine has measured, so the form must learn of it when it is loaded."""
    with gr.Blocks():
        load, outputs = live_tab(session)
    monkeypatch.setattr(
        fake_engine, "MODEL", msgspec.structs.replace(fake_engine.MODEL, budget=32, topk_cap=8)
    )
    filled = Form(*[update["value"] for update in load()[1:]])
    assert len(load()) == len(outputs)
    assert filled == form(budget=32, topk_cap=8)


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(engine, tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    session = Session(engine, Registry(tmp_path, tmp_path / "runs"))
    with pytest.raises(TraceError, match="choose a folder with --runs"):
        session.generate(SHORT)
    assert engine.calls == []


def test_without_an_engine_generate_says_what_to_do(folders):
    with pytest.raises(EngineError, match="only Replay works"):
        Session(None, Registry(*folders)).generate(SHORT)


# --- an engine that is a server


def offered(session, **changes):
    """What the form becomes for an engine whose model says so."""
    session.engine.be("ready")
    fake_engine.MODEL = msgspec.structs.replace(fake_engine.MODEL, **changes)
    return offers(session, "ddtree")


@pytest.fixture(autouse=True)
def same_model(monkeypatch):
    monkeypatch.setattr(fake_engine, "MODEL", fake_engine.MODEL)


def test_an_embedded_engine_offers_all_modes_and_any_tree(session):
    updates = offered(session)
    assert [name for _, name in updates["mode"]["choices"]] == ["ddtree", "dflash", "ar"]
    assert updates["budget"]["info"] == "1 to 1024 nodes"
    assert updates["topk_cap"]["info"] == "0 = no cap"


def test_an_own_server_says_beside_the_budget_that_more_restarts_it(session):
    updates = offered(session, modes=("ddtree", "dflash"), max_budget=16, max_topk_cap=16, may_grow=True)
    assert updates["budget"]["info"] == "1 to 16 nodes, more restarts it"
    assert updates["topk_cap"]["info"] == "0 = no cap"


def test_an_attached_server_says_its_limits(session):
    updates = offered(session, max_budget=16, max_topk_cap=4, view_only=True)
    assert updates["budget"]["info"] == "1 to 16 nodes"
    assert updates["topk_cap"]["info"] == "1 to 4"


def test_a_server_with_another_algorithm_offers_that_one_alone(session):
    updates = offered(session, modes=("server",), algorithm="EAGLE3")
    assert updates["mode"]["choices"] == [("EAGLE3", "server")]
    assert updates["mode"]["value"] == "server"
    assert updates["budget"]["interactive"] is False


def test_the_defaults_fit_into_a_small_server(session):
    offered(session, max_budget=8, max_topk_cap=2)
    assert (values(session).budget, values(session).topk_cap) == (8, 2)


def test_a_mode_that_the_engine_has_not_is_refused(session, engine):
    offered(session, modes=("dflash",))
    with pytest.raises(EngineError, match="can't run mode ddtree"):
        session.generate(SHORT)
    assert engine.calls == []


def test_a_run_that_restarts_its_engine_has_begun(session, engine, monkeypatch):
    """The page waits for its trace, and follows it when it comes."""
    monkeypatch.setattr(engine, "generate", lambda params, trace: engine.be("starting", "restarting"))
    run = session.generate(SHORT)
    assert session.growing(run.trace)
    engine.be("off", "it did not come back")
    assert not session.growing(run.trace)


def test_the_log_is_told_only_to_those_who_ask(session, engine):
    status = status_function(session)
    assert (status({})["logged"], status({"log": True})["log"]) == (False, [])
    engine.printed = ["a line", "another"]
    assert (status({})["logged"], status({})["log"]) == (True, [])
    assert status({"log": True})["log"] == ["a line", "another"]


def test_a_request_of_another_client_is_shown_as_long_as_it_grows(engine, folders, tmp_path):
    (tmp_path / "server").mkdir()
    session = Session(engine, Registry(*folders, tmp_path / "server"))
    write_trace(tmp_path / "server" / "20261130-034030-other.ddviz", finish=False)
    (request,) = requests_function(session)({})["requests"]
    assert show_request(session, request["id"])["live"] is True
    answer = poll_function(session)({"trace": request["id"], "since": 0})
    assert (answer["growing"], answer["damage"]) == (True, None)
    engine.be("off", "no server answers")
    assert show_request(session, request["id"])["live"] is False


@pytest.mark.parametrize("sent", [None, 7, "", "../x", {"trace": "x"}])
def test_what_is_no_id_of_a_request_shows_nothing(session, sent):
    assert show_request(session, sent) == gr.skip()
