"""What leaves the app: links that open the same again, and exported files."""

import json
import shutil
import threading

import networkx as nx
import pytest

from ddviz.app import main
from ddviz.app.links import follow_link
from ddviz.app.panels import export_function, sizes_function
from tests.app.app_page import AppPage, served_app
from tests.app.fake_engine import FakeEngine
from tests.browser import wait_until, watched_page
from tests.viewer.fixtures import write_trace

NOT_FILES = [
    {"to": "exe"},
    {"to": ["html"]},
    {"to": "html", "level": {"a": 1}},
    {"to": "svg", "step": 99},
    {},
]


@pytest.fixture
def sample(session, folders):
    write_trace(folders[0] / "story.ddviz")
    return session.registry.samples()[0].id


def is_refused(answer) -> bool:
    return list(answer) == ["error"] and len(answer["error"]) > 10


# Functions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", NOT_FILES)
def test_a_file_that_makes_no_sense_is_refused(session, sample, request_):
    assert is_refused(export_function(session)({"trace": sample, "step": 0, **request_}))


@pytest.mark.parametrize("trace", [None, 7, "", "../../etc/passwd", "unknown"])
def test_files_of_traces_that_are_not_open_are_refused(session, trace):
    assert is_refused(export_function(session)({"trace": trace, "to": "html", "step": 0}))
    assert is_refused(sizes_function(session)({"trace": trace}))


def test_the_sizes_are_those_of_the_pages(session, sample):
    sizes = sizes_function(session)({"trace": sample})
    assert sizes["light"] < sizes["standard"]
    page = export_function(session)({"trace": sample, "to": "html", "level": "light", "step": 3})
    assert page["name"] == "story.html" and 'data-step="3"' in page["text"]
    assert len(page["text"]) == pytest.approx(sizes["light"], rel=0.1)


def test_a_trace_keeps_its_link_when_the_app_starts_anew(session, sample, folders):
    registry = session.registry
    assert registry.link_of(sample) == "sample:story"
    assert registry.linked("sample:story") == sample
    outside = folders[0].parent / "elsewhere.ddviz"
    shutil.copy(folders[0] / "story.ddviz", outside)
    dropped = registry.add(outside)
    assert registry.linked(registry.link_of(dropped)) == dropped


@pytest.mark.parametrize(
    "link", ["sample:../story", "sample:none", "run:story", "open:none", "x", "sample:", "file:/etc/passwd"]
)
def test_a_link_names_nothing_but_listed_traces(session, sample, link):
    assert session.registry.linked(link) is None
    notice = follow_link(session, f"#trace={link}")[2]
    assert notice["error"] and link.split("/")[0] in notice["text"]


def test_an_address_without_a_trace_changes_nothing(session):
    for fragment in (None, "", "#", "#step=3", "#trace="):
        assert all("value" not in change for change in follow_link(session, fragment))


# In the browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    write_trace(samples / "plain-story.ddviz", steps=12)
    write_trace(samples / "other-story.ddviz", steps=5, seed=2)
    engine = FakeEngine()
    with served_app(engine, runs, samples) as url:
        yield url
    engine.close()


@pytest.mark.browser
def test_a_copied_link_opens_the_same_trace_step_stage_node_and_panels(browser, url):
    with watched_page(browser) as watched:
        app = AppPage(watched, url)
        app.tab("Replay")
        app.pick("Sample", "plain story")
        app.page.keyboard.press("g")
        app.page.keyboard.type("7")
        app.page.keyboard.press("Enter")
        app.viewer().get_by_text("step 7 ·").wait_for()
        for _ in range(4):
            app.page.keyboard.press(".")
        app.viewer().get_by_role("button", name="Wide: give the tree the whole width").click()
        app.viewer().get_by_role("tree").focus()
        app.page.keyboard.press("[")
        wait_until(app.page, "location.hash.includes('panels=wide') && location.hash.includes('node=')")
        link = app.page.url
        assert "#trace=sample:plain-story&step=7&stage=verify&node=" in link
    with watched_page(browser) as watched:
        app = AppPage(watched, link)
        app.viewer().get_by_text("step 7 ·").wait_for()
        app.page.wait_for_timeout(600)
        assert app.page.url == link
        wide = app.viewer().get_by_role("button", name="Wide: give the tree the whole width")
        assert wide.get_attribute("aria-pressed") == "true"
        app.page.evaluate("location.hash = '#trace=sample:other-story&step=2'")
        app.viewer().get_by_text("step 2 ·").wait_for()
        app.viewer().get_by_text("other-story").first.wait_for()
        app.assert_quiet()


@pytest.mark.browser
def test_a_link_shows_no_other_tab_while_it_is_opened(browser, tmp_path, monkeypatch):
    write_trace(tmp_path / "plain-story.ddviz", steps=3)
    may_answer = threading.Event()

    def slowly(*asked):
        may_answer.wait(60)
        return follow_link(*asked)

    monkeypatch.setattr(main, "follow_link", slowly)
    cover = "getComputedStyle(document.body, '::after').content"
    with served_app(None, tmp_path, tmp_path) as url, watched_page(browser) as watched:
        watched.page.goto(f"{url}#trace=sample:plain-story")
        try:
            wait_until(watched.page, f"{cover}.includes('Opening the link')")
        finally:
            may_answer.set()
        watched.page.locator(".ddviz-stage:visible").get_by_text("plain-story").first.wait_for()
        wait_until(watched.page, f"{cover} === 'none'")


@pytest.mark.browser
def test_a_link_to_a_trace_that_is_gone_says_so(browser, url):
    with watched_page(browser) as watched:
        app = AppPage(watched, f"{url}#trace=sample:%3Cb%3Egone&step=1")
        app.page.locator(".ddviz-notice:visible").get_by_text("sample:<b>gone, which is not here").wait_for()
        app.assert_quiet()


@pytest.mark.browser
def test_a_recorded_run_is_exported_from_the_keyboard(browser, url, tmp_path):
    with watched_page(browser) as watched:
        app = AppPage(watched, f"{url}#trace=sample:plain-story&step=4")
        app.viewer().get_by_text("step 4 ·").wait_for()
        app.page.keyboard.press("e")
        sheet = app.page.get_by_role("dialog", name="Export")
        sheet.get_by_text("about").first.wait_for()
        with app.page.expect_download() as download:
            sheet.get_by_role("button", name="Export graphml").press("Enter")
        assert download.value.suggested_filename == "plain-story-step-4.graphml"
        assert "bonus" in nx.read_graphml(download.value.path())
        with app.page.expect_download() as download:
            sheet.get_by_role("button", name="Export light html").click()
        download.value.save_as(tmp_path / "page.html")
        sheet.get_by_text("plain-story.html is written.").wait_for()
        app.page.keyboard.press("Escape")
        app.page.keyboard.press("ArrowRight")
        app.viewer().get_by_text("step 5 ·").wait_for()
        app.assert_quiet()
    with watched_page(browser) as watched:
        watched.page.goto((tmp_path / "page.html").as_uri())
        watched.page.get_by_text("step 4 ·").wait_for()


@pytest.mark.browser
def test_a_live_run_is_exported_too(browser, url):
    with watched_page(browser) as watched:
        app = AppPage(watched, url)
        app.press("Step")
        app.wait_for_state("paused")
        app.wait_for_steps(1)
        app.viewer().get_by_role("button", name="Export (E)").click()
        with app.page.expect_download() as download:
            app.page.get_by_role("dialog", name="Export").get_by_role("button", name="Export json").click()
        assert json.loads(download.value.path().read_text())["graph"]["step"] == 0
        app.page.keyboard.press("Escape")
        app.press("Stop")
        app.wait_for_state("ready")
        app.assert_quiet()
