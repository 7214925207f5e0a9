"""Live in chromium on an SGLang server: one of the app's own, as a child process, and an attached one."""

import sys
import threading

import httpx
import pytest

from ddviz.engines.sglang_server import AttachedServer, OwnServer
from ddviz.engines.sglang_server.own import ServerOptions
from ddviz.trace import load
from tests.app.app_page import AppPage, served_app
from tests.app.conftest import wait_until
from tests.browser import watched_page
from tests.fake_sglang import FakeServer

pytestmark = pytest.mark.browser
FAKE = (sys.executable, "-m", "tests.fake_sglang")


@pytest.fixture
def folders(tmp_path):
    for name in ("runs", "samples", "server"):
        (tmp_path / name).mkdir()
    return tmp_path


def newest(runs):
    return max(runs.glob("*.ddviz"), key=lambda path: path.stat().st_mtime_ns)


def settled_steps(app) -> int:
    """Steps on the page once their number no longer changes."""
    count = -1
    while count != (now := app.steps()):
        count = now
        app.page.wait_for_timeout(400)
    return count


def test_an_own_server_loads_runs_pauses_steps_grows_dies_and_comes_back(browser, folders):
    options = ServerOptions("t", "d", ("--fake-dies", "die now", "--fake-step-s", "0.05"), FAKE)
    engine = OwnServer(options, folders / "runs" / "server")
    runs = folders / "runs"
    try:
        with served_app(engine, runs, folders / "samples") as url, watched_page(browser) as watched:
            app = AppPage(watched, url)
            app.wait_for_state("ready")
            app.page.get_by_text("1 to 16 nodes, more restarts it").wait_for()
            app.page.get_by_text("Log of the server").click()
            app.page.locator(".ddviz-log-lines", has_text="fired up and ready").wait_for()
            app.page.get_by_text("Log of the server").click()

            app.fill("Max tokens", "5000")
            app.generate()
            app.wait_for_steps(2)
            assert app.badge() == "LIVE"
            app.press("Pause")
            app.wait_for_state("paused")
            before = settled_steps(app)
            app.press("Step")
            app.wait_for_steps(before + 1)
            app.wait_for_state("paused")
            assert settled_steps(app) == before + 1
            app.press("Resume")
            app.wait_for_steps(before + 3)
            app.press("Stop")
            app.wait_for_state("ready")
            app.viewer().get_by_text("end: stopped by hand").wait_for()

            app.fill("Budget", "40")
            app.fill("Max tokens", "30")
            app.press("Generate")
            app.page.get_by_text("1 to 40 nodes, more restarts it").wait_for()
            app.wait_for_state("ready")
            app.viewer().get_by_text("end: max tokens reached").wait_for()
            assert load(newest(runs)).header.budget == 40

            app.page.get_by_label("Chat template").uncheck()
            app.fill("Prompt", "die now")
            app.fill("Max tokens", "5000")
            app.press("Generate")
            app.wait_for_state("off")
            message = app.page.locator(".ddviz-engine-message").inner_text()
            assert message.startswith("The SGLang server was killed by SIGKILL: RuntimeError: CUDA error")
            assert app.steps() == 3
            app.press("Start the server again")
            app.wait_for_state("ready")
            app.assert_quiet()
    finally:
        engine.close()


def test_an_attached_server_is_watched_and_only_the_view_pauses(browser, folders):
    server = FakeServer(folders / "server", step_s=0.05)
    engine = AttachedServer(server.url, folders / "server")
    custom = {"ddviz": {"level": "standard"}}

    def ask(rid, tokens):
        body = {
            "rid": rid,
            "text": "words",
            "sampling_params": {"max_new_tokens": tokens, "custom_params": custom},
        }
        httpx.post(f"{server.url}/generate", json=body, timeout=60, trust_env=False)

    try:
        with (
            served_app(engine, folders / "runs", folders / "samples", folders / "server") as url,
            watched_page(browser) as watched,
        ):
            app = AppPage(watched, url)
            app.wait_for_state("ready")
            app.page.get_by_text("None is traced yet").wait_for()
            other = threading.Thread(target=ask, args=("somebody-else", 200), daemon=True)
            other.start()
            row = app.page.locator(".ddviz-requests button", has_text="somebody-else")
            row.wait_for()  # by itself
            row.click()
            app.wait_for_steps(3)
            assert app.badge() == "LIVE"
            assert "somebody-else" in app.viewer().locator(".ddviz-name").inner_text()
            other.join()
            app.viewer().get_by_text("end: max tokens reached").wait_for()

            app.fill("Max tokens", "300")
            app.generate()
            app.wait_for_steps(2)
            app.press("Pause view")
            app.wait_for_state("paused")
            before = settled_steps(app)
            original = newest(folders / "server")
            wait_until(lambda: len(load(original).steps) > before + 3)
            app.press("Step view")
            app.wait_for_steps(before + 1)
            assert settled_steps(app) == before + 1
            app.press("Resume")
            app.wait_for_state("ready")
            assert "/pause_generation" not in server.calls

            app.fill("Budget", "17")
            app.press("Generate")
            assert "this server was started with 16" in app.problem()
            app.assert_quiet()
    finally:
        engine.close()
        server.close()
