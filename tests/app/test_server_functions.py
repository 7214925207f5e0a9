"""Whatever a browser sends to a server function, the answer is a plain dict: data, or one sentence."""

import json
import math

import pytest

from ddviz.app.panels import control_function, poll_function, status_function, step_function
from ddviz.app.session import Session
from ddviz.app.traces import Registry
from tests.viewer.fixtures import write_trace

NOT_OBJECTS = [None, [], "poll", 7, True, object()]
NOT_IDS = [None, 7, True, [], {}, "", "../../etc/passwd", "x" * 10_000, "unknown"]
NOT_INDEXES = [None, -1, 1.0, "0", True, [], {}, 2**53, math.nan, math.inf]


@pytest.fixture
def sample(session, folders):
    write_trace(folders[0] / "a.ddviz")
    return session.registry.samples()[0].id


def is_refused(answer) -> bool:
    sentence = answer.get("error")
    return list(answer) == ["error"] and isinstance(sentence, str) and len(sentence) > 10


@pytest.mark.parametrize("request_", NOT_OBJECTS)
@pytest.mark.parametrize("make", [poll_function, step_function, status_function, control_function])
def test_a_request_that_is_no_object_is_refused(session, make, request_):
    assert is_refused(make(session)(request_))


def test_a_function_called_without_a_request_refuses(session):
    assert is_refused(poll_function(session)())


@pytest.mark.parametrize("trace", NOT_IDS)
def test_an_id_that_was_never_given_out_is_refused(session, trace):
    assert is_refused(poll_function(session)({"trace": trace, "since": 0}))
    assert is_refused(step_function(session)({"trace": trace, "index": 0}))


@pytest.mark.parametrize("index", NOT_INDEXES)
def test_an_index_that_is_no_whole_number_is_refused(session, sample, index):
    assert is_refused(poll_function(session)({"trace": sample, "since": index}))
    assert is_refused(step_function(session)({"trace": sample, "index": index}))


def test_a_missing_field_is_refused(session, sample):
    assert is_refused(poll_function(session)({}))
    assert is_refused(poll_function(session)({"trace": sample}))
    assert is_refused(step_function(session)({"index": 0}))


def test_a_step_beyond_the_last_is_refused_with_the_count(session, sample):
    total = poll_function(session)({"trace": sample, "since": 0})["total"]
    assert f"has {total} " in step_function(session)({"trace": sample, "index": total})["error"]


def test_poll_gives_the_new_rows_only(session, sample):
    poll = poll_function(session)
    everything = poll({"trace": sample, "since": 0})
    assert [row["i"] for row in everything["steps"]] == list(range(everything["total"]))
    rest = poll({"trace": sample, "since": everything["total"] - 1})
    assert [row["i"] for row in rest["steps"]] == [everything["total"] - 1]
    assert poll({"trace": sample, "since": 10**6})["steps"] == []


def test_a_long_trace_is_answered_before_it_was_read(session, sample, monkeypatch):
    monkeypatch.setattr("ddviz.app.traces.READ_AT_ONCE", 4096)
    monkeypatch.setattr("ddviz.app.panels.MAX_ROWS", 1)
    poll, rows = poll_function(session), []
    while True:
        answer = poll({"trace": sample, "since": len(rows)})
        rows += answer["steps"]
        assert not answer["damage"]
        if not answer["more"] and len(rows) == answer["total"]:
            break
        assert answer["end"] is None and answer["steps"]
    assert [row["i"] for row in rows] == list(range(answer["total"])) and answer["end"]


def test_every_answer_is_json_without_a_path_of_this_machine(session, sample, folders):
    answers = [
        poll_function(session)({"trace": sample, "since": 0}),
        step_function(session)({"trace": sample, "index": 0}),
        status_function(session)({}),
        control_function(session)({"action": "pause"}),
    ]
    for answer in answers:
        assert str(folders[0].parent) not in json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize("action", [None, 7, "", "generate", "close", "__init__", "be", "status", ["stop"]])
def test_only_the_five_controls_are_controls(session, engine, action):
    assert is_refused(control_function(session)({"action": action}))
    assert engine.calls == []


@pytest.mark.parametrize("action", ["pause", "resume", "step", "stop", "restart"])
def test_a_control_reaches_the_engine(session, engine, action):
    assert control_function(session)({"action": action}) == {"done": True}
    assert engine.calls == [action]


def test_without_an_engine_status_says_what_to_do(folders):
    session = Session(None, Registry(*folders))
    status = status_function(session)({})
    assert status["state"] == "off"
    assert "ddviz" in status["message"]
    assert is_refused(control_function(session)({"action": "stop"}))


def test_a_file_that_is_no_trace_is_told_by_poll(session, tmp_path):
    (tmp_path / "x.ddviz").write_text("hello")
    answer = poll_function(session)({"trace": session.registry.add(tmp_path / "x.ddviz"), "since": 0})
    assert answer["error"].startswith("x.ddviz: not a .ddviz trace")


def test_a_file_that_vanished_is_told_by_poll(session, sample, folders):
    (folders[0] / "a.ddviz").unlink()
    assert is_refused(poll_function(session)({"trace": sample, "since": 0}))
