"""The page on the real engine process with a tiny random model: text and tree grow, and the controls hold."""

import os
import signal

import pytest

from ddviz.check.doctor import examine, faults
from ddviz.trace import load
from tests.app.app_page import AppPage, served_app
from tests.app.conftest import wait_until
from tests.browser import watched_page

pytestmark = pytest.mark.browser
HOSTILE_PROMPT = "</script><img src=x onerror=alert(1)>${alert(1)}{{x}}`\u202e"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("real-runs")


@pytest.fixture(scope="module")
def app(browser, engine_process, runs, tmp_path_factory):
    with (
        served_app(engine_process, runs, tmp_path_factory.mktemp("no-samples")) as url,
        watched_page(browser) as watched,
    ):
        app = AppPage(watched, url)
        app.fill("Max tokens", "400")  # seconds: Pause must come in time
        app.fill("Budget", "60")
        app.fill("Top-k cap", "0")
        app.fill("Temperature", "1")
        seed = app.page.locator(".ddviz-seed").locator("input, textarea")
        seed.fill("2")  # one that meets no stop token
        seed.blur()
        yield app
        app.assert_quiet()


def newest(runs):
    return max(runs.glob("*.ddviz"), key=lambda path: path.stat().st_mtime_ns)


def test_text_and_tree_grow_and_pause_step_resume_and_stop_hold(app, runs):
    app.fill("Prompt", "hello")
    app.generate()
    app.press("Pause")
    app.wait_for_state("paused")
    app.wait_for_tree()
    wait_until(lambda: sum(app.statuses().values()) >= 61)  # the last tree is drawn anew when steps rest
    wait_until(lambda: app.steps() == len(load(newest(runs)).steps))
    before = app.steps()
    app.press("Step")
    app.wait_for_steps(before + 1)
    app.wait_for_state("paused")
    assert len(load(newest(runs)).steps) == before + 1
    app.press("Resume")
    app.wait_for_steps(before + 3)
    app.press("Stop")
    app.wait_for_state("ready")
    trace = load(newest(runs))
    assert trace.end is not None
    assert faults(examine(trace)) == []


def test_hostile_text_from_a_model_is_shown_as_text(app):
    app.fill("Prompt", HOSTILE_PROMPT)
    app.fill("Max tokens", "150")  # some four of them hostile
    app.generate()
    app.wait_for_state("ready")
    prompt = app.viewer().locator(".ddviz-prompt").inner_text()
    assert "</script><img src=x onerror=alert(1)>${alert(1)}{{x}}`⟨U+202E⟩" in prompt
    app.assert_quiet()


def test_a_killed_engine_is_said_its_trace_kept_and_it_starts_again(app, engine_process, runs):
    app.fill("Max tokens", "400")
    app.fill("Prompt", "hello")
    app.generate()
    os.kill(engine_process._child.pid, signal.SIGKILL)
    app.wait_for_state("off")
    assert "killed by SIGKILL" in app.page.get_by_role("region", name="Engine").inner_text()
    assert len(load(newest(runs)).steps) >= 1
    app.press("Restart engine")
    app.wait_for_state("ready")
