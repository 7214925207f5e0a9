"""The app by keyboard alone: Tab reaches and shows every part, and all of the microscope works by keys."""

import networkx as nx
import pytest

from tests.app.app_page import AppPage, served_app
from tests.app.fake_engine import FakeEngine
from tests.batches import write_batch
from tests.browser import wait_until, watched_page
from tests.keyboard import ACTIVE, FOCUSED, NAME, tab_to, tabbable, walk
from tests.viewer.fixtures import write_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    write_trace(samples / "plain-story.ddviz", steps=12)
    write_trace(samples / "other-story.ddviz", steps=9, seed=2)
    write_batch(runs)
    engine = FakeEngine()
    with served_app(engine, runs, samples) as url:
        yield url
    engine.close()


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def enter(page, name, key="Enter"):
    tab_to(page, name)
    press(page, key)


def forbid_the_pointer(watched):
    """Who has no pointer hovers over nothing either: an event of one is trouble."""
    watched.at_start(
        """for (const type of ["pointerdown", "pointermove", "mousedown", "mousemove", "wheel"])
             addEventListener(type, () => console.error(`a pointer was used: ${type}`), true);"""
    )


def in_viewer(selector):
    """JavaScript: the first such part of the viewer that is shown."""
    shown = "[...document.querySelectorAll('.ddviz-host')].find((host) => host.getClientRects().length)"
    return f'{shown}?.shadowRoot.querySelector("{selector}")'


def is_lit(node):
    part = f"tr.ddviz-lit[data-node='{node}']"
    return f"Boolean({in_viewer(part)})"


def is_chosen(node):
    part = f"g[aria-selected=true][data-node='{node}']"
    return f"Boolean({in_viewer(part)})"


REPLAY = "#trace=sample:plain-story&step=4"
PAGES = {
    "live": "",
    "replay": REPLAY,
    "build": f"{REPLAY}&stage=build",
    "charts": f"{REPLAY}&panels=charts",
    "batch": "#trace=run:request-b&step=2&panels=batch",
    "compare": "#trace=sample:plain-story&with=sample:other-story&position=1",
}
READY = {
    "live": ".ddviz-bar[data-state='ready']",
    "build": ".ddviz-popped",
    "charts": "[data-chart=times] [role=button]",
    "batch": ".ddviz-owner-block >> nth=3",
    "compare": ".ddviz-side-b .ddviz-chunk",
}


LOOKED_AT: set[str] = set()  # parts that were seen to have the focus, on whichever page: once is enough


@pytest.mark.parametrize("name", PAGES)
def test_tab_goes_once_round_and_is_seen_at_every_part(browser, url, name):
    """There and back: nothing that is missed, no trap, no part that takes the focus away from another."""
    with watched_page(browser) as watched:
        app = AppPage(watched, url + PAGES[name])
        page = app.page
        page.locator(READY.get(name, "g[role='treeitem']:visible")).first.wait_for()
        page.wait_for_timeout(500)  # what rests until steps rest
        expected = tabbable(page)
        there = walk(page, look=lambda part: part not in LOOKED_AT)
        assert sorted(stop.name for stop in there) == expected
        assert [stop.name for stop in there if not stop.is_seen] == []
        LOOKED_AT.update(expected)
        back = walk(page, back=True, look=lambda _: False)
        assert [stop.name for stop in back] == [stop.name for stop in reversed(there)]
        app.assert_quiet()


def test_the_microscope_works_by_keys_alone(browser, url, tmp_path):
    """From the tab to the exported page, in the order of what a reader does."""
    with watched_page(browser) as watched:
        forbid_the_pointer(watched)
        app = AppPage(watched, url)
        page = app.page

        # a sample is picked, by a part of its name
        tab_to(page, "Live")
        enter(page, "Replay")
        tab_to(page, "Sample")
        page.keyboard.type("plain")
        press(page, "Enter")
        app.viewer().get_by_text("step 0 ·").wait_for()
        wait_until(page, f"({FOCUSED}).includes('RECORDED')")  # the viewer has the focus

        # stages, by buttons and by keys, and a walk within one by its slider
        enter(page, "Stage 2 of 5: build")
        page.locator(".ddviz-popped:visible").wait_for()
        tab_to(page, "pop of the stage")
        press(page, "Home", "ArrowRight", "ArrowRight")
        page.locator(".ddviz-stage-says", has_text="Pop 2:").wait_for()
        press(page, ".", ".")
        page.locator(".ddviz-verify:visible").wait_for()

        # why: a sibling is chosen in the table, and lights up in the arrays
        tab_to(page, "Select node 2")
        wait_until(page, is_lit(2))
        press(page, "Enter")
        wait_until(page, is_chosen(2))
        page.locator(".ddviz-verify tr.ddviz-chosen[data-node='2']").wait_for()

        # the tree: parent, first child, fold and unfold, zoom
        tab_to(page, "Draft tree of step 0")
        press(page, "[")
        wait_until(page, is_chosen(0))
        press(page, "z")
        page.locator("g[role=treeitem][aria-expanded=false]").wait_for()
        press(page, "z", "+", "0", "Enter")
        page.locator(".ddviz-card:visible").wait_for()
        press(page, "Escape")
        page.locator(".ddviz-card").wait_for(state="hidden")

        # arrays, and sideways in what is wider than its place
        enter(page, "Show the step as arrays")
        page.set_viewport_size({"width": 1000, "height": 800})
        tab_to(page, "Arrays of the step")
        press(page, "Shift+ArrowRight")
        page.locator(".ddviz-table-box").and_(page.locator(":visible")).wait_for()
        wait_until(page, f"{in_viewer('.ddviz-table-box')}.scrollLeft > 0")
        page.set_viewport_size({"width": 1280, "height": 800})
        tab_to(page, "Show the step as arrays", back=True)
        press(page, "Enter")

        # time: the scrubber, play, the sheets, jumps
        tab_to(page, "Step", back=True)
        press(page, "ArrowRight")
        app.viewer().get_by_text("step 1 ·").wait_for()
        press(page, "g")
        page.keyboard.type("6")
        press(page, "Enter")
        app.viewer().get_by_text("step 6 ·").wait_for()
        for key, sheet in (("/", "Find"), ("?", "Keys")):
            press(page, key)
            page.get_by_role("dialog", name=sheet).wait_for()
            expected, stops = tabbable(page), set()
            for _ in range(2 * len(expected) + 2):
                stops.add(page.evaluate(f"({NAME})({ACTIVE})"))
                press(page, "Tab")
            assert stops - {page.evaluate(f"({NAME})(document.body)")} == set(expected), "a sheet holds Tab"
            press(page, "Escape")
            page.get_by_role("dialog", name=sheet).wait_for(state="hidden")
        tab_to(page, "How fast to play")
        press(page, "ArrowDown")
        tab_to(page, "Play the steps (P)", back=True)
        press(page, "Enter")
        app.viewer().get_by_text("step 7 ·").wait_for()
        press(page, "p", "Home")
        app.viewer().get_by_text("step 0 ·").wait_for()

        # charts: a bar of a chart goes to a step of it
        press(page, "c")
        tab_to(page, "step 0: accept length")
        press(page, "ArrowRight", "ArrowRight", "Enter")
        wait_until(page, "location.hash.includes('step=2')")
        press(page, "c")

        # export
        press(page, "e")
        page.get_by_role("dialog", name="Export").get_by_text("about").first.wait_for()
        with page.expect_download() as download:
            enter(page, "Export graphml")
        assert "bonus" in nx.read_graphml(download.value.path())
        press(page, "Escape", "ArrowRight")
        app.viewer().get_by_text("step 3 ·").wait_for()
        app.assert_quiet()


def test_batch_and_compare_work_by_keys_alone(browser, url):
    with watched_page(browser) as watched:
        forbid_the_pointer(watched)
        app = AppPage(watched, f"{url}#trace=run:request-b&step=2")
        page = app.page
        app.wait_for_tree()
        press(page, "b")
        page.locator(".ddviz-owner-block:visible").nth(3).wait_for()
        enter(page, "Open D: row 3")
        page.wait_for_url("**/*trace=run:request-d*")
        page.locator(".ddviz-topbar .ddviz-name:visible", has_text="request-d").wait_for()

        tab_to(page, "Replay", back=True)
        enter(page, "Compare")
        for picker, name in (("A", "plain story"), ("B", "other story")):
            page.wait_for_timeout(300)
            tab_to(page, picker)
            page.keyboard.type(name)
            press(page, "Enter")
            wait_until(page, f"document.querySelector('input[aria-label={picker}]').value.includes('{name}')")
        page.locator(".ddviz-side-b .ddviz-chunk").first.wait_for(state="attached")
        enter(page, "Next step of either")
        tab_to(page, "Place in the output")
        press(page, "End")
        wait_until(page, "location.hash.includes('position=')")
        page.locator(".ddviz-side-a .ddviz-counter b", has_text="11").wait_for()
        press(page, "Home")
        page.locator(".ddviz-side-a .ddviz-counter b", has_text="0").wait_for()
        enter(page, "Go to where the texts part")
        tab_to(page, "Stage 4 of 5: verify")
        press(page, "Enter")
        page.locator(".ddviz-side-a .ddviz-verify").wait_for()
        app.assert_quiet()


def test_a_run_is_begun_halted_and_ended_by_keys_alone(browser, url):
    with watched_page(browser) as watched:
        forbid_the_pointer(watched)
        app = AppPage(watched, url)
        page = app.page
        app.wait_for_state("ready")
        tab_to(page, "Prompt")
        page.keyboard.type("a prompt")
        for button, state in (
            ("Generate", "running"),
            ("Pause", "paused"),
            ("Resume", "running"),
            ("Stop", "ready"),
        ):
            enter(page, button)
            app.wait_for_state(state)
            page.locator("body").press("Home")  # of a button that is now disabled no key comes
        app.wait_for_steps(1)
        app.assert_quiet()
