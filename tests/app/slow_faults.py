"""What goes wrong around a running app: nothing that was recorded before is lost, and it goes on by itself.

Each app is a process of its own, as `ddviz` starts it, on a tiny random pair; pages speak to it over HTTP.
Elsewhere: a full disk (tests/engines/test_full_disk.py), a killed engine (tests/engines/test_process.py and
test_real_engine.py), an SGLang server that dies (tests/engines/sglang_server).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from ddviz.check.doctor import examine, faults
from ddviz.trace import load
from tests.app.app_page import AppPage
from tests.app.conftest import free_port, wait_until
from tests.app.http_page import HttpPage
from tests.browser import watched_page

LONG = {"Prompt": "hello", "Temperature": 1, "Seed": "4", "Budget": 60, "Max tokens": 400}
SHORT = {**LONG, "Max tokens": 20}
# for root no folder is read-only, unless it gives up that power
AS_NO_ROOT = ("setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override")


class App:
    """`ddviz` as a child process."""

    def __init__(self, pair, runs, log, before=()):
        self.runs, self.log, self.port = runs, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "ddviz.cli", "--port", self.port, "--runs", runs, "--device", "cpu"]
        self._command = [str(word) for word in [*before, *command, "--target", pair[0], "--draft", pair[1]]]
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(lambda: answers(self.port) or self.child.poll() is not None, 120)
        assert self.child.poll() is None, self.log.read_text()
        self.page = HttpPage(self.url)
        wait_until(lambda: self.page.status()["state"] == "ready", 120)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def end(self):
        self.child.send_signal(signal.SIGINT)
        try:
            self.child.wait(120)
        finally:
            self.child.kill()


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started(*args, **options):
    app = App(*args, **options)
    try:
        yield app
    finally:
        app.end()


@pytest.fixture(scope="module")
def pair(tiny_folders):
    return tiny_folders["llama"]


@pytest.fixture(scope="module")
def app(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with started(pair, folder / "runs", folder / "app.log") as app:
        yield app


@pytest.fixture
def page(app):
    page = HttpPage(app.url)
    yield page
    page.control("stop")
    page.close()


def begin(page, settings=LONG, steps=4):
    """Press Generate and wait for some steps; the id of the trace."""
    answer = page.generate(**settings)
    assert answer["error"] is None, answer
    trace = page.status()["run"]["trace"]
    wait_until(lambda: poll(page, trace)["total"] >= steps)
    return trace


def poll(page, trace, since=0):
    return page.ask(page.panel("Live run"), "poll", trace=trace, since=since)


def steps_of(page, trace):
    """The indices of all steps that the page is shown, each once."""
    rows, answer = [], {"more": True}
    while answer["more"]:
        answer = poll(page, trace, len(rows))
        rows += [step["index"] for step in answer["steps"]]
    return rows


def ended(page):
    wait_until(lambda: page.status()["state"] == "ready")


def the_trace(runs, count=1):
    """The newest of the traces in the folder, of which there are so many: whole, and without a fault."""
    paths = sorted(runs.glob("*.ddviz"), key=lambda path: path.stat().st_mtime_ns)
    assert len(paths) == count
    trace = load(paths[-1])
    assert trace.damage is None and trace.end is not None
    assert [step.index for step in trace.steps] == list(range(len(trace.steps)))
    assert faults(examine(trace)) == []
    return trace


def test_a_folder_that_is_removed_while_it_is_recorded_into_comes_back_with_the_whole_trace(app, page):
    trace = begin(page)
    before = poll(page, trace)["total"]
    shutil.rmtree(app.runs)
    wait_until(lambda: poll(page, trace)["total"] > before + 3)
    page.control("stop")
    ended(page)
    assert len(the_trace(app.runs).steps) > before + 3
    assert steps_of(page, trace) == list(range(len(the_trace(app.runs).steps)))
    assert poll(page, trace)["damage"] is None


def test_a_browser_that_goes_away_costs_nothing_and_another_one_is_served(app):
    shutil.rmtree(app.runs, ignore_errors=True)
    left = HttpPage(app.url)
    begin(left, {**LONG, "Max tokens": 150})
    left.close()
    other = HttpPage(app.url)
    assert other.status()["state"] == "ready" and other.status()["run"] is None
    begin(other, {**SHORT, "Prompt": "of another"}, steps=1)
    ended(other)
    wait_until(lambda: len(list(app.runs.glob("*.ddviz"))) == 2)
    wait_until(lambda: all(load(path).end for path in app.runs.glob("*.ddviz")))
    assert {load(path).end.finish_reason for path in app.runs.glob("*.ddviz")} <= {"length", "stop"}


def test_readers_that_do_not_read_hold_up_nobody(app, page):
    """Eight ask for a file of half a megabyte and never take it; the engine and the other pages go on."""
    sample = next(trace for title, trace in page.samples().items() if title == "sglang 64 t0.6")
    panel = page.panel("Recorded run")
    assert len(page.ask_raw(panel, "exported", trace=sample, to="html", step=0)) > 500_000
    body = (
        f'{{"component_id": {panel}, "fn_name": "exported", "session_hash": "slow",'
        f' "data": {{"trace": "{sample}", "to": "html", "step": 0}}}}'
    )
    head = (
        f"POST /gradio_api/component_server HTTP/1.1\r\nHost: 127.0.0.1:{app.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    handles = len(os.listdir(f"/proc/{app.child.pid}/fd"))
    stalled = []
    for _ in range(8):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", app.port))
        connection.sendall((head + body).encode())
        stalled.append(connection)
    for connection in stalled:
        assert connection.recv(8).startswith(b"HTTP/1.1"), "the answer has begun"
    trace = begin(page)
    before, took = poll(page, trace)["total"], []
    for index in range(20):
        start = time.monotonic()
        assert page.ask(panel, "step", trace=sample, index=index)["i"] == index
        took.append(time.monotonic() - start)
    wait_until(lambda: poll(page, trace)["total"] > before + 3)
    assert sorted(took)[10] < 2, f"seconds for a step: {took}"
    for connection in stalled:
        connection.close()
    wait_until(lambda: len(os.listdir(f"/proc/{app.child.pid}/fd")) <= handles + 2)


def test_a_killed_app_loses_nothing_and_a_page_that_stays_open_goes_on_with_the_next(pair, tmp_path):
    with started(pair, tmp_path / "runs", tmp_path / "app.log") as app:
        page = app.page
        trace = begin(page, {**LONG, "Max tokens": 200})
        before = poll(page, trace)["total"]
        app.kill()
        app.start()
        rows = steps_of(page, trace)  # the id of before, and no page was opened since
        assert len(rows) >= before and rows == list(range(len(rows)))
        wait_until(lambda: poll(page, trace)["end"])  # by the engine that outlived its app
        assert steps_of(page, trace) == list(range(len(the_trace(app.runs).steps)))
        begin(page, SHORT, steps=1)
        ended(page)
        the_trace(app.runs, count=2)


@pytest.mark.browser
def test_an_open_page_shows_the_rest_of_its_run_when_the_app_is_started_again(browser, pair, tmp_path):
    with (
        started(pair, tmp_path / "runs", tmp_path / "app.log") as app,
        watched_page(browser) as watched,
    ):
        page = AppPage(watched, app.url)
        for label in ("Prompt", "Temperature", "Budget", "Max tokens"):
            page.fill(label, str(LONG[label]))
        seed = page.page.locator(".ddviz-seed").locator("input, textarea")
        seed.fill("4")
        seed.blur()
        page.generate()
        page.wait_for_steps(4)
        app.kill()
        page.wait_for_state("lost")
        before = page.steps()
        app.start()
        page.wait_for_state("ready")
        wait_until(lambda: all(load(path).end for path in app.runs.glob("*.ddviz")))
        page.wait_for_steps(len(the_trace(app.runs).steps))
        assert len(the_trace(app.runs).steps) > before
        assert page.value("Prompt") == LONG["Prompt"], "what was typed is still there"
        page.generate()
        page.wait_for_steps(2)
        refused = [each for each in watched.trouble if "ERR_CONNECTION_REFUSED" in each or "net::" in each]
        assert refused == watched.trouble, "nothing but requests to an app that was gone"
        watched.trouble.clear()


def test_two_apps_on_one_folder_write_a_file_each_and_read_each_other(app, pair, tmp_path):
    shutil.rmtree(app.runs, ignore_errors=True)
    with started(pair, app.runs, tmp_path / "app.log") as other:
        pages = [HttpPage(app.url), HttpPage(other.url)]
        for number in range(3):
            for page in pages:  # one prompt, one second, one name
                assert page.generate(**SHORT)["error"] is None
            for page in pages:
                ended(page)
            assert the_trace(app.runs, count=2 * number + 2)
        trace = begin(pages[0])
        theirs = pages[1].fire(*list_of_saved(pages[1]))[0]["choices"]
        assert trace in [value for _, value in theirs], (
            "an id is that of the file, whichever app gives it out"
        )
        seen = poll(pages[1], trace)
        assert seen["growing"] and seen["damage"] is None
        pages[0].control("stop")
        wait_until(lambda: poll(pages[1], trace)["end"] == "stopped")


def list_of_saved(page):
    """The event of opening the Replay tab."""
    tab = next(event["targets"][0] for event in page._events if event["targets"][0][1] == "select")
    return [tab[0], "select", []]


def test_a_folder_made_read_only_lets_the_run_end_refuses_the_next_and_takes_another_again(pair, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    with started(pair, runs, tmp_path / "app.log", before=AS_NO_ROOT if os.geteuid() == 0 else ()) as app:
        page = app.page
        trace = begin(page)
        before = poll(page, trace)["total"]
        runs.chmod(0o555)
        wait_until(lambda: poll(page, trace)["total"] > before + 3)
        page.control("stop")
        ended(page)
        the_trace(runs)
        refused = page.generate(**SHORT)["error"]
        assert "can't keep traces there (Permission denied)" in refused and "--runs" in refused
        runs.chmod(0o755)
        begin(page, SHORT, steps=1)
        ended(page)
        the_trace(runs, count=2)
