"""Several browsers on one engine: each has its own run, sees its own and controls its own."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddviz.app import session as session_module
from ddviz.app.folders import reserved_path
from ddviz.app.session import Session
from ddviz.app.traces import Registry
from ddviz.app.visitors import COOKIE, _visitor
from ddviz.engines.base import GenerateParams
from ddviz.errors import DdvizError, TraceError
from ddviz.trace import load
from tests.app.app_page import served_app
from tests.app.conftest import wait_until
from tests.app.http_page import HttpPage
from tests.conftest import made_ready

LONG = 400  # tokens


@pytest.fixture
def process(engine_process):
    return made_ready(engine_process)


@pytest.fixture
def session(process, folders):
    return Session(process, Registry(*folders))


def asked(prompt="hello", **settings):
    return GenerateParams(
        prompt=prompt, **{"max_new_tokens": LONG, "temperature": 1.0, "seed": 4, **settings}
    )


class As:
    """Within the block it is this browser that asks."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.token = _visitor.set(self.name)

    def __exit__(self, *exc):
        _visitor.reset(self.token)


def test_each_visitor_has_a_run_of_its_own(session):
    with As("one"):
        first = session.generate(asked("of the first"))
    with As("two"):
        assert session.run is None and session.status().state == "ready"
        second = session.generate(asked("of the second"))
        session.control("pause")
        wait_until(lambda: session.status().state == "paused")
        assert session.run == second and session.viewer_value()["trace"] == second.trace
    with As("one"):
        assert session.run == first and session.status().state in ("prefill", "running")
        with pytest.raises(DdvizError, match="stop it first"):
            session.generate(asked())
        session.control("stop")
        wait_until(lambda: session.status().state == "ready")
    assert load(first.path).end.finish_reason == "stopped"
    with As("two"):
        assert session.status().state == "paused"
        session.control("stop")


def test_one_who_has_no_run_controls_nothing(session, process):
    with As("one"):
        run = session.generate(asked())
    with As("other"):
        for word in ("pause", "step", "resume", "stop"):
            session.control(word)
        with pytest.raises(DdvizError, match="others have runs"):
            session.control("restart")
    assert process.runs() == [run.path]
    assert session.growing(run.trace)
    process.stop(run.path)


def test_what_stands_paused_for_a_browser_that_left_makes_room(session, process, monkeypatch):
    runs = []
    for i in range(process.runs_at_once):
        with As(f"browser {i}"):
            runs.append(session.generate(asked()))
            session.control("pause")
            wait_until(lambda: session.status().state == "paused")
    with As("late"), pytest.raises(DdvizError, match="as many as it takes"):
        session.generate(asked())
    monkeypatch.setattr(session_module, "ABSENT_S", 0.3)
    time.sleep(0.4)
    for i in range(1, process.runs_at_once):
        with As(f"browser {i}"):
            session.status()  # it is still there
    with As("late"):
        late = session.generate(asked())
    assert load(runs[0].path).end.finish_reason == "stopped"
    assert process.runs() == [*(run.path for run in runs[1:]), late.path]


def test_the_visitors_that_are_remembered_do_not_grow_without_end(session, monkeypatch):
    monkeypatch.setattr(session_module, "MAX_VISITORS", 2)
    for i in range(5):
        with As(f"browser {i}"):
            session.generate(asked(max_new_tokens=2))
            wait_until(lambda: session.status().state == "ready")
    assert list(session._runs) == ["browser 3", "browser 4"] == list(session._heard)


def test_a_name_is_given_to_one_of_many_who_ask_at_once(tmp_path):
    def take(i):
        with reserved_path(tmp_path, "run") as path:
            path.write_text(str(i)) if not path.exists() else pytest.fail("given twice")
        return path

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(take, range(40)))
    assert len(set(paths)) == 40 == len(list(tmp_path.iterdir()))


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(TraceError, match="choose a folder with --runs"),
        reserved_path(tmp_path / "file", "x"),
    ):
        pass


def test_browsers_are_told_apart_by_a_cookie_and_see_no_text_of_each_other(process, folders):
    secrets = ("the moon over Tallinn", "a goat in Wellington")
    answers = {secret: [] for secret in secrets}
    with served_app(process, folders[1], folders[0]) as url:
        pages = [HttpPage(url, answers[secret].append) for secret in secrets]
        names = [page.client.cookies[COOKIE] for page in pages]
        assert names[0] != names[1]
        for page, secret in zip(pages, secrets, strict=True):
            assert page.generate(Prompt=secret, Temperature=1, Seed="4")["error"] is None
        for page in pages:
            watch(page, steps=4)
        assert pages[0].control("stop") == {"done": True}
        wait_until(lambda: pages[0].status()["state"] == "ready")
        assert pages[1].status()["state"] == "running"
        assert "set-cookie" not in pages[0].client.get("/").headers, "it has one"
    for secret, other in (secrets, secrets[::-1]):
        seen = b"\n".join(answers[secret]).decode().lower()
        own, others = ({word for word in text.lower().split() if len(word) > 3} for text in (secret, other))
        assert all(word in seen for word in own), "its link names the run by its first words"
        assert not any(word in seen for word in others)


def watch(page, steps):
    """Follow the page's run until it has so many steps."""
    run, live = page.status()["run"]["trace"], page.panel("Live run")
    wait_until(lambda: page.ask(live, "poll", trace=run, since=0)["total"] >= steps)
