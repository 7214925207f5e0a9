"""The charts: right numbers, a sentence each, and a press on a bar goes to a step of it."""

import re
from collections import Counter

import pytest

from ddviz.viewer import export_html, step_view
from tests.browser import wait_until, watched_page
from tests.synthetic import Setup, make_trace
from tests.viewer.fixtures import write_trace
from tests.viewer.test_browser import mount, mount_110_steps, open_page, settle

pytestmark = pytest.mark.browser

NAMES = ["length", "depth", "rank", "calibration", "entropy", "times"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("charts") / "long.ddviz", steps=40, seed=4)


@pytest.fixture(scope="module")
def pages(trace):
    return {
        level: export_html(trace, trace.path.with_suffix(f".{level}.html"), level)
        for level in ("standard", "light")
    }


def bars(page, chart):
    return page.locator(f"[data-chart={chart}] [role=button]")


def said(page, chart):
    """The sentence of each bar."""
    return [bars(page, chart).nth(k).get_attribute("aria-label") for k in range(bars(page, chart).count())]


def examined(trace):
    """(step, node) of all that acceptance looked at."""
    views = [step_view(trace, i) for i in range(len(trace.steps))]
    return [(v, n) for v in views for n in v["nodes"][1:] if n["status"] in ("accepted", "rejected")]


@pytest.mark.parametrize("level", ["standard", "light"])
def test_the_bars_say_what_the_steps_hold(browser, trace, pages, level):
    tried, taken = Counter(), Counter()
    for _, node in examined(trace):
        tried["rank", node["rank"]] += 1
        taken["rank", node["rank"]] += node["status"] == "accepted"
        tenth = min(9, int(float(f"{node['draft_prob']:.3g}") * 10))
        tried["calibration", tenth] += 1
        taken["calibration", tenth] += node["status"] == "accepted"
    for view_i, depth in {(v["i"], n["depth"]) for v, n in examined(trace)}:
        tried["depth", depth] += 1
        taken["depth", depth] += depth < len(step_view(trace, view_i)["path"])
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages[level])
        page.keyboard.press("c")
        assert page.locator(".ddviz-figure h4").count() == len(NAMES)
        for chart in ("rank", "depth", "calibration"):
            found = {}
            for k, sentence in enumerate(said(page, chart)):
                name = int(re.search(r"(\d+):", sentence)[1]) if chart != "calibration" else k
                numbers = re.search(r": (\d+) of (\d+) accepted", sentence)
                if numbers:
                    found[chart, name] = (int(numbers[1]), int(numbers[2]))
            assert found == {key: (taken[key], tried[key]) for key in tried if key[0] == chart}
        lengths = [
            f"step {i}: accept length {step.accept.num_accepted + 1}" for i, step in enumerate(trace.steps)
        ]
        assert said(page, "length") == lengths
        assert len(said(page, "times")) == 40 and "verify" in said(page, "times")[0]


def test_charts_that_a_link_opens_are_there_with_the_first_steps(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(f"{pages['light'].as_uri()}#panels=charts")
        wait_until(page, "ddviz.view.state().drawMs !== null")
        assert page.locator(".ddviz-charts-pane .ddviz-pane-head").inner_text().count("40 steps") == 1
        assert all(page.locator(f"[data-chart={name}] [role=button]").count() for name in NAMES[:4])


def test_each_chart_has_a_name_and_one_sentence(browser, trace, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["standard"])
        page.keyboard.press("c")
        mean = sum(step.accept.num_accepted + 1 for step in trace.steps) / len(trace.steps)
        for figure in page.locator(".ddviz-figure").all():
            title, says = figure.locator("h4").inner_text(), figure.locator("p").inner_text()
            assert says.endswith(".") and "NaN" not in says and "undefined" not in says
            assert figure.get_by_role("group").get_attribute("aria-label") == f"{title}. {says}"
        calibration = page.locator("[data-chart=calibration] p").inner_text()
        assert re.search(r"its probabilities are (about right|too high|too low)\.$", calibration)
        assert f"A step adds {mean:.2f} tokens" in page.locator("[data-chart=length] p").inner_text()


def test_a_press_on_a_bar_goes_to_a_step_where_such_a_node_was_refused(browser, trace, pages):
    refused = sorted({v["i"] for v, n in examined(trace) if n["rank"] == 1 and n["status"] == "rejected"})
    assert len(refused) > 1
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["standard"])
        page.keyboard.press("c")
        bar = page.locator("[data-chart=rank]").get_by_role("button", name=re.compile("^rank 1:"))
        start = page.evaluate("ddviz.view.state().step")
        for wanted in [i for i in refused if i > start][:2]:
            bar.click()
            settle(page, wanted)
        page.evaluate("ddviz.view.update({ step: 39 })")
        settle(page, 39)
        bar.click()  # round again
        settle(page, refused[0])
        wait_until(page, "location.hash.includes('panels=charts')")


def test_the_charts_are_walked_by_key(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["standard"])
        page.keyboard.press("c")
        assert bars(page, "length").and_(page.locator("[tabindex='0']")).count() == 1
        bars(page, "length").first.focus()
        for _ in range(7):
            page.keyboard.press("ArrowRight")
        assert page.evaluate("ddviz.view.state().step") == 0, "the arrows go from bar to bar here"
        page.keyboard.press("Enter")
        settle(page, 7)
        page.keyboard.press("End")
        page.keyboard.press(" ")
        settle(page, 39)
        page.keyboard.press("c")
        assert page.locator(".ddviz-figure").first.is_hidden()
        page.locator(".ddviz-plot").wait_for()


def test_charts_and_batch_exclude_each_other_and_the_link_brings_the_view_back(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(f"{pages['standard'].as_uri()}#step=3&panels=charts")
        page.locator("[data-chart=rank]").wait_for()
        assert page.locator(".ddviz-plot").is_hidden()
        page.keyboard.press("b")
        assert page.locator("[data-chart=rank]").is_hidden()
        page.locator(".ddviz-batch-pane").wait_for()
        page.get_by_role("button", name="Charts of all steps (C)").click()
        assert page.locator(".ddviz-batch-pane").is_hidden()
        assert page.locator("[data-chart=rank]").is_visible()


def test_a_stage_that_is_chosen_closes_the_charts(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["standard"])
        page.keyboard.press("c")
        page.keyboard.press(".")
        assert page.locator(".ddviz-charts-pane").is_hidden()
        assert page.locator(".ddviz-stage-pane").is_visible()
        assert page.evaluate("ddviz.view.state().stage") == "draft"


def test_bars_that_are_means_say_so(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount_110_steps(page, traces)
        page.keyboard.press("c")
        for chart in ("length", "times"):
            says = page.locator(f"[data-chart={chart}] p").inner_text()
            assert says.endswith("Each bar is the mean of 2 steps.")


def test_the_charts_grow_with_a_live_trace(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=4)
        wait_until(page, "view.state().drawMs !== null")
        page.keyboard.press("c")
        assert bars(page, "length").count() == 4
        page.evaluate("stub.grown = 9")
        bars(page, "length").nth(8).wait_for(state="attached")


def test_what_a_trace_does_not_hold_is_said(browser):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, make_trace(Setup(algorithm="AR", max_new_tokens=6, stop_token_ids=())), live=False)
        wait_until(page, "view.state().drawMs !== null")
        page.keyboard.press("c")
        for chart in ("depth", "rank", "calibration", "entropy"):
            assert page.locator(f"[data-chart={chart}]").inner_text().endswith("does not hold what it takes.")
            assert bars(page, chart).count() == 0
        assert bars(page, "length").count() > 0


def test_no_chart_runs_out_of_its_place(browser, pages):
    for width in (420, 1280, 1920):
        with watched_page(browser, width=width) as watched:
            page = watched.page
            open_page(page, pages["standard"])
            page.keyboard.press("c")
            body = page.locator(".ddviz-charts-body")
            assert body.evaluate("(box) => box.scrollWidth <= box.clientWidth"), width
