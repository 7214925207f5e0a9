"""The samples that Replay offers while no trace is open: what is said of each, and that a click opens one."""

from pathlib import Path

import gradio as gr
import pytest

from ddviz.app.replay import WELCOME, open_sample
from ddviz.app.samples import facts_of, samples_function
from ddviz.trace import load
from tests.app.app_page import AppPage, served_app
from tests.browser import watched_page
from tests.keyboard import tab_to
from tests.viewer.fixtures import write_trace

TRACES = Path(__file__).parents[2] / "traces"


def listed(session):
    return samples_function(session)({})["samples"]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("quicksort-greedy", "DDTREE · budget 16 · cap 4 · greedy · 58 steps"),
        ("sglang-64-t0.6", "DDTREE · budget 64 · cap 64 · temperature 0.6 · 33 steps"),
        ("quicksort-ar", "AR · greedy · 184 steps"),
    ],
)
def test_a_sample_says_what_ran(name, facts):
    assert facts_of(load(TRACES / f"{name}.ddviz")) == facts


def test_every_sample_is_listed_with_its_words_in_the_order_of_the_readme(session, folders):
    for name in ("alpha", "beta"):
        write_trace(folders[0] / f"{name}.ddviz", steps=5)
    write_trace(folders[1] / "saved.ddviz")
    (folders[0] / "README.md").write_text("- `beta.ddviz`: what it teaches\n")
    samples = listed(session)
    assert [(sample["title"], sample["about"]) for sample in samples] == [
        ("beta", "what it teaches"),
        ("alpha", ""),
    ]
    assert all(sample["facts"].endswith(" · 5 steps") for sample in samples)
    assert [sample["id"] for sample in samples] == [entry.id for entry in session.registry.samples()]


def test_a_sample_that_is_no_trace_is_listed_without_facts_and_says_why_when_opened(session, folders):
    (folders[0] / "notes.ddviz").write_text("just notes")
    (sample,) = listed(session)
    assert sample["facts"] == ""
    _, notice, *_ = open_sample(session, sample["id"])
    assert notice["error"] and notice["text"].startswith("notes.ddviz: not a .ddviz trace")


def test_of_a_long_sample_only_the_beginning_is_read(session, folders, monkeypatch):
    monkeypatch.setattr("ddviz.app.traces.READ_AT_ONCE", 4096)
    write_trace(folders[0] / "long.ddviz", steps=40)
    assert "steps" not in listed(session)[0]["facts"]


def test_a_sample_that_is_clicked_is_opened_and_picked(session, folders):
    write_trace(folders[0] / "story.ddviz")
    (entry,) = session.registry.samples()
    viewer, notice, sample, saved = open_sample(session, entry.id)
    assert (viewer["trace"], viewer["link"]) == (entry.id, "sample:story")
    assert notice == {"text": "", "error": False}
    assert (sample["value"], saved) == (entry.id, None)


@pytest.mark.parametrize("sent", [None, 7, [], {}, "", "../../etc/passwd", "sample:story", "unknown"])
def test_nothing_but_a_sample_is_opened_by_the_list(session, folders, sent):
    write_trace(folders[0] / "story.ddviz")
    assert is_refused(open_sample(session, sent))


def test_a_saved_run_is_no_sample(session, folders):
    write_trace(folders[1] / "saved.ddviz")
    (entry,) = session.registry.saved_runs()
    assert is_refused(open_sample(session, entry.id))


def is_refused(answer) -> bool:
    viewer, notice, *pickers = answer
    return notice["error"] and [viewer, *pickers] == [gr.skip()] * 3


# --- in a browser


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    write_trace(samples / "plain-story.ddviz", steps=12)
    write_trace(samples / "other-story.ddviz", steps=9, seed=2)
    (samples / "README.md").write_text("- `plain-story.ddviz`: what a <b>sample</b> {{teaches}}\n")
    with served_app(None, runs, samples) as url:
        yield url


@pytest.mark.browser
def test_a_click_on_a_sample_opens_it_in_place_of_the_list(browser, url):
    with watched_page(browser) as watched:
        app = AppPage(watched, url)
        app.tab("Replay")
        samples = app.page.locator(".ddviz-samples button")
        samples.filter(has_text="plain story").click()
        app.wait_for_tree()
        assert app.viewer().locator(".ddviz-name").inner_text() == "plain-story"
        assert app.page.locator(".ddviz-notice:visible").inner_text() == "what a <b>sample</b> {{teaches}}"
        assert app.value("Sample") == "plain story"
        assert not samples.first.is_visible()
        app.page.keyboard.press("ArrowRight")
        app.viewer().get_by_text("step 1 ·").wait_for()
        app.assert_quiet()


@pytest.mark.browser
def test_a_sample_is_opened_by_keys_alone(browser, url):
    with watched_page(browser) as watched:
        app = AppPage(watched, url)
        app.tab("Replay")
        app.page.locator(".ddviz-samples button").first.wait_for()
        tab_to(app.page, "other story")  # past the pickers, which are empty: that is no mistake
        app.page.wait_for_timeout(500)
        assert app.page.locator(".ddviz-notice:visible").inner_text() == WELCOME
        app.page.keyboard.press("Enter")
        app.wait_for_tree()
        assert (app.value("Sample"), app.steps()) == ("other story", 9)
        app.assert_quiet()


@pytest.mark.browser
def test_a_link_to_a_trace_shows_no_list(browser, url):
    with watched_page(browser) as watched:
        app = AppPage(watched, f"{url}#trace=sample:plain-story&step=3")
        app.viewer().get_by_text("step 3 ·").wait_for()
        assert not app.page.locator(".ddviz-samples").is_visible()
        app.assert_quiet()
