"""The page as a whole: what it is built of, and how it is served."""

import socket
import urllib.request

import gradio as gr
import pytest

from ddviz.app.main import build, launch, quiet_settings
from ddviz.app.panels import served
from ddviz.errors import DdvizError
from tests.app.app_page import served_app


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return build(None, tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("samples"))


def test_no_template_takes_a_value_in(page):
    """What stands in a template is executed; model text must never get there."""
    panels = [block for block in page.blocks.values() if isinstance(block, gr.HTML)]
    assert len(panels) == 8  # control bar, two notices, samples, viewers of Live and Replay, Compare, Learn
    for panel in panels:
        assert not [mark for mark in ("${", "{{", "@children") if mark in panel.html_template]
        assert panel.css_template == ""


def test_no_event_waits_in_the_queue(page):
    """Its loop is slowed down, so that it leaves the processor to the engine."""
    assert page.fns
    assert not [fn.name for fn in page.fns.values() if fn.queue]


def test_nothing_is_collected_or_shared(page):
    assert page.analytics_enabled is False
    assert quiet_settings()["share"] is False
    assert quiet_settings()["run_history"] is False


def test_an_answer_is_encoded_as_it_is():
    assert (
        served(lambda request: {"got": request, "none": None})({"a": "ü"}).body
        == '{"got":{"a":"ü"},"none":null}'.encode()
    )


def test_a_port_that_is_taken_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DdvizError, match=f"^127.0.0.1 port {port} is taken; .* with --port"):
            launch(None, tmp_path, tmp_path, port=port, block=False)


def test_it_starts_behind_a_proxy_that_cannot_reach_this_machine(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    with served_app(None, tmp_path, tmp_path) as url, urllib.request.urlopen(url) as answer:
        assert answer.status == 200
        assert b"fonts.googleapis" not in answer.read()
