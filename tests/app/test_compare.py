"""The Compare tab: two traces side by side, stepping together, the place where their texts part."""

import json

import msgspec
import pytest

from ddviz.app.compare import compare_function, show_pair
from ddviz.trace import Recorder
from tests.app.app_page import AppPage, served_app
from tests.browser import LIMIT_MS, wait_until, watched_page
from tests.viewer.fixtures import write_trace

STEPS = 12


def write_pair(folder):
    """Two runs of one text; the second takes it in single tokens and parts from it at token 9."""
    first = write_trace(folder / "long-steps.ddviz", steps=STEPS)
    header = msgspec.structs.replace(first.header, request_id="single")
    with Recorder(
        folder / "single-steps.ddviz", header, first.tokens.__getitem__, overwrite=True
    ) as recorder:
        recorder.prompt(first.prompt.token_ids, first.prompt.text)
        recorder.prefill(first.prefills[0][1])
        tokens = first.output_ids[1:9] + [(token + 1) % 20 for token in first.output_ids[9:]]
        template = first.steps[0]
        for i, token in enumerate(tokens):
            accept = msgspec.structs.replace(
                template.accept,
                index=template.accept.index[:1],
                num_accepted=0,
                predicts=[token],
                bonus=token,
            )
            recorder.step(msgspec.structs.replace(template, index=i, accept=accept, emitted=[token]))
    return first


@pytest.fixture
def pair(session, folders):
    write_pair(folders[0])
    return {entry.title: entry.id for entry in session.registry.samples()}


def test_the_alignment_says_where_the_texts_part(session, pair):
    answer = compare_function(session)({"a": pair["long steps"], "b": pair["single steps"]})
    json.loads(msgspec.json.encode(answer))
    assert (answer["parts_at"], answer["common"], answer["same_prompt"]) == (9, 9, True)
    assert answer["b"]["parting"]["step"] == 8 and answer["b"]["parting"]["place"] == 0
    a = answer["a"]
    assert a["starts"][a["parting"]["step"]] + a["parting"]["place"] == 9
    assert answer["b"]["starts"] == list(range(1, answer["b"]["tokens"]))


@pytest.mark.parametrize("trace", [None, 7, [], "", "../../etc/passwd", "x" * 99, "unknown"])
def test_an_id_that_was_never_given_out_is_refused(session, pair, trace):
    for request in ({"a": trace, "b": pair["long steps"]}, {"a": pair["long steps"], "b": trace}, {}):
        assert list(compare_function(session)(request)) == ["error"]


def test_one_trace_alone_is_not_compared(session, pair):
    assert "Pick two" in show_pair(session, pair["long steps"], None)[1]["text"]
    assert show_pair(session, pair["long steps"], "gone")[1]["error"]


# In the browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    trace = write_pair(samples)
    write_trace(samples / "hostile.ddviz", hostile=True, seed=3)
    with served_app(None, runs, samples) as url:
        yield url, trace


def open_pair(watched, url, a="long-steps", b="single-steps", more=""):
    app = AppPage(watched, f"{url}#trace=sample:{a}&with=sample:{b}{more}")
    for side in "ab":
        app.page.locator(f".ddviz-side-{side} .ddviz-counter b").wait_for()
        app.page.locator(f".ddviz-side-{side} .ddviz-chunk").first.wait_for(state="attached")
    return app


def shown(page, side):
    return int(page.locator(f".ddviz-side-{side} .ddviz-counter b").inner_text())


def wait_for_steps(page, a, b):
    for _ in range(LIMIT_MS // 25):
        if (shown(page, "a"), shown(page, "b")) == (a, b):
            return
        page.wait_for_timeout(25)
    assert (shown(page, "a"), shown(page, "b")) == (a, b)


@pytest.mark.browser
def test_two_picked_traces_step_together(browser, served):
    url, trace = served
    starts = [1]
    for step in trace.steps:
        starts.append(starts[-1] + len(step.emitted))
    with watched_page(browser) as watched:
        app = AppPage(watched, url)
        app.tab("Compare")
        for label, title in (("A", "long steps"), ("B", "single steps")):
            app.page.get_by_label(label, exact=True).click()
            app.page.get_by_role("option", name=title).first.click()
        app.page.locator(".ddviz-side-b .ddviz-chunk").first.wait_for(state="attached")
        app.page.locator(".ddviz-side-b").get_by_role("button", name="First step (Home)").click()
        for i in (1, 2, 3):
            app.page.locator(".ddviz-side-a").get_by_role("button", name="Next step (→)").click()
            wait_for_steps(app.page, i, starts[i] - 1)  # each step of B emitted one token
        app.page.locator(".ddviz-side-b").get_by_role("button", name="First step (Home)").click()
        wait_for_steps(app.page, 0, 0)
        app.page.get_by_role("button", name="Next step of either").click()
        wait_for_steps(app.page, 0, 1)
        app.assert_quiet()


@pytest.mark.browser
def test_the_first_place_where_text_parts_is_marked_and_reached(browser, served):
    url, _ = served
    with watched_page(browser) as watched:
        app = open_pair(watched, url, more="&position=1")
        page = app.page
        page.get_by_text("The texts are the same for 9 tokens, then part: A goes on with").wait_for()
        for side in "ab":
            marked = page.locator(f".ddviz-side-{side} .ddviz-t.ddviz-parting")
            assert marked.count() == 1
            label = page.locator(".ddviz-compare-sentence .ddviz-parting").nth("ab".index(side)).inner_text()
            assert marked.inner_text().strip() == label.replace("·", " ").strip()
        page.get_by_role("button", name="Go to where the texts part").click()
        wait_for_steps(page, shown(page, "a"), 8)
        wait_until(page, "location.hash.includes('&position=9') || location.hash.includes('&position=8')")
        link = page.url
        both = shown(page, "a"), shown(page, "b")
        app.assert_quiet()
    with watched_page(browser) as watched:
        app = AppPage(watched, link)
        app.page.locator(".ddviz-side-b .ddviz-chunk").first.wait_for(state="attached")
        wait_for_steps(app.page, *both)
        app.assert_quiet()


@pytest.mark.browser
def test_either_side_has_room_for_all_its_stages_and_views(browser, served):
    with watched_page(browser) as watched:
        page = open_pair(watched, served[0]).page
        for side in "ab":
            bar = page.locator(f".ddviz-side-{side} .ddviz-stagebar")
            box = bar.bounding_box()
            for part in bar.get_by_role("button").all():
                own = part.bounding_box()
                assert box["x"] <= own["x"] and own["x"] + own["width"] <= box["x"] + box["width"]


@pytest.mark.browser
def test_the_chart_is_walked_by_key_and_pointer(browser, served):
    url, trace = served
    with watched_page(browser) as watched:
        app = open_pair(watched, url, more="&position=1")
        page = app.page
        chart = page.get_by_role("slider", name="Place in the output")
        chart.focus()
        page.keyboard.press("ArrowRight")
        wait_for_steps(page, 0, 1)
        assert chart.get_attribute("aria-valuetext") == "token 2"
        page.keyboard.press("End")
        wait_for_steps(page, STEPS - 1, len(trace.output_ids) - 2)
        box = chart.bounding_box()
        page.mouse.click(box["x"] + 93, box["y"] + 40)
        wait_for_steps(page, 0, 0)
        page.evaluate("location.hash = location.hash.replace(/position=\\d+/, 'position=3')")
        wait_for_steps(page, shown(page, "a"), 2)
        numbers = page.locator(".ddviz-compare-numbers").inner_text()
        assert "accept length" in numbers and "1.00" in numbers
        app.assert_quiet()


@pytest.mark.browser
def test_hostile_text_stays_text_in_a_comparison(browser, served):
    url, _ = served
    with watched_page(browser) as watched:
        app = open_pair(watched, url, a="hostile", b="long-steps")
        app.page.wait_for_timeout(500)
        app.assert_quiet()
