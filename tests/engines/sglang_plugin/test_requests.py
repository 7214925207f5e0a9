"""What one request may ask of DDTREE, without SGLang: any object with its parameters' names will do."""

from types import SimpleNamespace

import pytest

from ddviz.engines.sglang_plugin.requests import level_of_all, refusal, tree_limits
from ddviz.errors import EngineError


def params(**given):
    return SimpleNamespace(**{"min_p": 0.0, "sampling_seed": None, "custom_params": None, **given})


def said(deterministic=False, **given):
    return refusal(params(**given), budget=16, topk_cap=4, deterministic=deterministic)


def test_a_plain_request_is_welcome_and_gets_the_servers_limits():
    assert said() is None
    assert tree_limits(None, 16, 4) == (16, 4)
    assert tree_limits({"ddviz": {"level": "standard"}}, 16, 4) == (16, 4)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({"budget": 8}, (8, 4)),
        ({"topk_cap": 1}, (16, 1)),
        ({"budget": 1, "topk_cap": 2}, (1, 2)),
        ({"topk_cap": 0}, (16, 4)),  # no cap of its own: the server's
        ({}, (16, 4)),
    ],
)
def test_a_request_may_ask_for_less_than_the_server_has(asked, limits):
    assert said(custom_params={"ddtree": asked}) is None
    assert tree_limits({"ddtree": asked}, 16, 4) == limits


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"budget": 17}, "custom_params['ddtree']['budget'] is 17, must be an integer in [1, 16]"),
        ({"budget": 0}, "[1, 16]"),
        ({"budget": True}, "is True"),
        ({"budget": 2.0}, "is 2.0"),
        ({"budget": "8"}, "is '8'"),
        ({"topk_cap": 5}, "in [0, 4]"),
        ({"topk_cap": -1}, "in [0, 4]"),
        ({"width": 3}, "has no field 'width', only budget, topk_cap"),
        ([8, 4], "must be an object"),
        (8, "must be an object"),
    ],
)
def test_limits_that_cannot_be_met_are_refused_with_their_value(asked, words):
    assert words in said(custom_params={"ddtree": asked})


@pytest.mark.parametrize("level", ["light", "standard", "off"])
def test_a_request_may_be_traced_at_a_level_that_the_plugin_writes(level):
    assert said(custom_params={"ddviz": {"level": level}}) is None


@pytest.mark.parametrize("level", ["full", "Standard", 1, None, ["light"]])
def test_a_level_that_nothing_writes_is_refused(level):
    assert "must be one of light, standard, off" in said(custom_params={"ddviz": {"level": level}})


@pytest.mark.parametrize("asked", ["standard", True, 1])
def test_a_trace_is_asked_for_by_an_object(asked):
    assert "must be an object" in said(custom_params={"ddviz": asked})


@pytest.mark.parametrize(
    ("value", "level"), [("light", "light"), ("standard", "standard"), ("off", None), ("", None)]
)
def test_a_server_may_be_told_to_trace_all(monkeypatch, value, level):
    monkeypatch.setenv("DDVIZ_TRACE", value)
    assert level_of_all() == level


@pytest.mark.parametrize("value", ["full", "yes", "Standard", "0"])
def test_a_level_for_all_that_nothing_writes_is_an_error(monkeypatch, value):
    monkeypatch.setenv("DDVIZ_TRACE", value)
    with pytest.raises(EngineError, match=f"DDVIZ_TRACE is '{value}', must be one of light, standard, off"):
        level_of_all()


def test_what_a_tree_verify_would_ignore_is_refused():
    assert "min_p, got 0.1" in said(min_p=0.1)
    assert "--enable-deterministic-inference" in said(sampling_seed=7)
    assert said(sampling_seed=7, deterministic=True) is None
    assert said(min_p=0.1, deterministic=True) is not None
