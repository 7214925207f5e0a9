"""The app in Debian's chromium, on a FakeEngine: what a person sees, and what a page must never do."""

import pytest

from ddviz.app.live import DEFAULTS
from ddviz.trace import load
from tests.app.app_page import AppPage, served_app
from tests.app.conftest import wait_until
from tests.app.fake_engine import FakeEngine
from tests.browser import Watched, watched_page
from tests.viewer.fixtures import write_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Samples and runs that all tests of this file share."""
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    write_trace(samples / "plain-story.ddviz", steps=12)
    write_trace(samples / "hostile-tokens.ddviz", steps=30, hostile=True, seed=3)
    (samples / "README.md").write_text("- `plain-story.ddviz`: what a <b>sample</b> {{teaches}}\n")
    return samples, runs


@pytest.fixture(scope="module")
def engine():
    engine = FakeEngine()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def url(engine, folders):
    samples, runs = folders
    with served_app(engine, runs, samples) as url:
        yield url


@pytest.fixture(scope="module")
def shared_page(browser, url):
    """One page for the file: to open a new one takes Gradio two seconds."""
    with watched_page(browser) as watched:
        yield AppPage(watched, url)


@pytest.fixture
def app(shared_page, engine):
    """The page at its Live tab, the engine idle; at the end nothing forbidden may have happened."""
    engine.rest()
    app = shared_page
    app.tab("Live")
    app.wait_for_state("ready")
    app.page.evaluate("history.replaceState(null, '', '/')")  # it names a step that a sample would open at
    app.fill("Prompt", "a prompt")
    app.fill("Max tokens", "5000")
    yield app
    engine.rest()
    app.assert_quiet()


def test_an_untouched_form_asks_for_the_defaults(shared_page, engine):
    """Stands first: a page that opens later shows the settings of the run before."""
    shared_page.press("Generate")
    shared_page.wait_for_steps(1)
    assert engine.asked == DEFAULTS


def test_a_sample_is_replayed_by_keyboard(app):
    app.tab("Replay")
    app.pick("Sample", "plain story")
    assert app.badge() == "RECORDED"
    assert app.page.locator(".ddviz-notice:visible").inner_text() == "what a <b>sample</b> {{teaches}}"
    app.viewer().get_by_text("step 0 ·").wait_for()
    for key, step in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 11), ("Home", 0)]:
        app.page.keyboard.press(key)
        app.viewer().get_by_text(f"step {step} ·").wait_for()


def test_after_a_click_beside_everything_the_keys_still_step(app):
    app.tab("Replay")
    app.pick("Sample", "plain story")
    app.viewer().get_by_text("step 0 ·").wait_for()
    size = app.page.viewport_size
    app.page.mouse.click(3, size["height"] - 3)
    assert app.page.evaluate("document.activeElement === document.body")
    app.page.keyboard.press("ArrowRight")
    app.viewer().get_by_text("step 1 ·").wait_for()
    app.page.keyboard.press("Home")
    app.viewer().get_by_text("step 0 ·").wait_for()


def test_every_node_shows_its_status(app):
    app.tab("Replay")
    app.pick("Sample", "plain story")
    app.wait_for_tree()
    shown = app.statuses()
    assert shown["root"] == 1
    assert sum(shown.values()) - shown["bonus"] == 17  # budget 16 and the root
    assert shown["accepted"] > 0
    assert shown["unreached"] > 0


def written(engine) -> int:
    """Steps in the trace of its run."""
    return len(load(engine.status().trace).steps)


def test_text_and_tree_grow_live_and_pause_step_resume_stop_obey(app, engine):
    app.generate()
    app.wait_for_steps(2)
    assert app.badge() == "LIVE"
    app.wait_for_live_tree()
    app.press("Pause")
    app.wait_for_state("paused")
    wait_until(lambda: app.statuses()["root"] == 1)  # the tree of another step may be on its way
    app.viewer().get_by_text("PAUSED").wait_for()
    before = written(engine)
    app.wait_for_steps(before)
    app.press("Step")
    app.wait_for_steps(before + 1)
    wait_until(lambda: engine.status().state == "paused")
    assert app.steps() == written(engine) == before + 1
    app.press("Resume")
    app.wait_for_steps(before + 4)
    app.press("Stop")
    app.wait_for_state("ready")
    app.viewer().get_by_text("end: stopped by hand").wait_for()
    assert app.badge() == "RECORDED"


def test_buttons_are_enabled_by_state(app, engine):
    def enabled() -> set[str]:
        names = ("Generate", "Pause", "Step", "Resume", "Stop")
        return {name for name in names if app.button(name).is_enabled()}

    app.wait_for_state("ready")
    assert enabled() == {"Generate", "Step"}
    app.press("Generate")
    app.wait_for_state("running")
    assert enabled() == {"Pause", "Step", "Stop"}
    app.press("Pause")
    app.wait_for_state("paused")
    assert enabled() == {"Step", "Resume", "Stop"}
    engine.be("off", "gone")
    app.wait_for_state("off")
    assert enabled() == set()


def test_step_begins_a_run_that_waits_after_its_first_step(app, engine):
    engine.may_begin.clear()
    app.press("Step")
    wait_until(lambda: "step" in engine.calls)
    engine.may_begin.set()
    app.wait_for_state("paused")
    app.wait_for_steps(1)
    assert app.steps() == written(engine) == 1


def test_a_page_that_is_reloaded_finds_the_run_and_what_was_typed(app):
    app.fill("Prompt", "Tell me about <b>trees</b> & ${hashes}")
    app.fill("Budget", "7")
    app.generate()
    app.wait_for_steps(2)
    app.reload()
    app.wait_for_steps(3)
    assert app.badge() == "LIVE"
    assert app.value("Prompt") == "Tell me about <b>trees</b> & ${hashes}"
    assert app.value("Budget") == "7"


def test_a_second_page_joins_the_run_of_the_first(app, url):
    second = AppPage(Watched(app.page.context.new_page()), url)
    app.press("Generate")
    second.wait_for_steps(2)
    second.assert_quiet()
    second.page.close()


BAD_INPUT = [
    ("Prompt", "  ", "the prompt is empty; type something to continue"),
    ("Temperature", "-1", "temperature is -1, must be a finite number >= 0 (0 = greedy)"),
    ("Budget", "", "Budget is empty; type a number"),
    ("Budget", "0", "budget is 0, must be from 1 to 1024"),
]


def test_bad_input_gets_one_sentence_and_nothing_is_lost(app):
    good = {"Prompt": "a prompt to keep", "Max tokens": "777", "Temperature": "0", "Budget": "5"}
    for label, typed, sentence in BAD_INPUT:
        kept = good | {label: typed}
        for name, value in kept.items():
            app.fill(name, value)
        app.press("Generate")
        app.page.locator(".ddviz-problem", has_text=sentence).wait_for()
        assert {name: app.value(name) for name in kept} == kept
    app.fill("Budget", "5")
    app.press("Generate")
    app.page.locator(".ddviz-problem").wait_for(state="hidden")
    app.wait_for_steps(1)


def test_an_engine_that_refuses_says_why(app, engine):
    engine.refusal = "the prompt has 9,000 tokens, the context holds 8,192; <b>shorten</b> it"
    app.press("Generate")
    assert (
        app.problem()
        == engine.status().error
        == "the prompt has 9,000 tokens, the context holds 8,192; <b>shorten</b> it"
    )


def test_a_refused_run_leaves_the_view_where_it_was(app, engine):
    app.fill("Max tokens", "30")
    app.generate()
    app.viewer().get_by_text("end: max tokens reached").wait_for()
    app.viewer().locator(".ddviz-chunk").nth(1).click()
    app.viewer().get_by_text("step 1 ·").wait_for()
    app.fill("Budget", "0")
    app.press("Generate")
    app.page.locator(".ddviz-problem", has_text="budget is 0").wait_for()
    app.fill("Budget", "5")
    engine.refusal = "the prompt has 9,000 tokens, the context holds 8,192; shorten it"
    app.press("Generate")
    app.page.locator(".ddviz-problem", has_text="9,000 tokens").wait_for()
    app.page.wait_for_timeout(1500)  # the page has asked for the engine's status since
    assert app.viewer().get_by_text("step 1 ·").is_visible()


def test_an_engine_that_dies_keeps_what_it_wrote_and_can_be_restarted(app, engine):
    app.generate()
    app.wait_for_steps(3)
    engine.be(
        "off",
        "the engine was killed by SIGKILL; restart it to go on\nlast words <img src=x onerror=alert(9)>",
    )
    app.wait_for_state("off")
    assert (
        app.page.locator(".ddviz-engine-message").inner_text().startswith("The engine was killed by SIGKILL")
    )
    assert app.page.locator(".ddviz-engine-log").inner_text() == "last words <img src=x onerror=alert(9)>"
    app.viewer().get_by_text("RECORDED", exact=True).wait_for()
    assert app.steps() >= 3
    app.press("Restart engine")
    app.wait_for_state("ready")
    app.press("Generate")
    app.wait_for_state("running")


def test_fetching_shows_its_progress_and_failing_its_remedy(app, engine):
    engine.be("fetching", "fetching the demo target, 98 MB", 0.4)
    app.wait_for_state("fetching")
    assert app.page.locator(".ddviz-progress").first.get_attribute("value") == "0.4"
    assert app.button("Generate").is_disabled()
    engine.be(
        "failed",
        "the demo target is not here and PyPI can't be reached; connect once, then restart the engine",
    )
    app.wait_for_state("failed")
    assert "connect once" in app.page.locator(".ddviz-engine-message").inner_text()
    app.tab("Replay")
    app.pick("Sample", "plain story")
    assert app.steps() == 12


def test_hostile_tokens_are_shown_as_text_in_replay(app):
    app.tab("Replay")
    app.pick("Sample", "hostile tokens")
    app.page.keyboard.press("End")
    app.viewer().get_by_text("step 29 ·").wait_for()
    text = app.text()
    for token in ("${alert(1)}", "{{constructor", "`backtick`", "</script>", "<img src=", "⟨U+202E⟩", "⟨ff⟩"):
        assert token in text
    assert app.viewer().locator("img, script").count() == 0


def test_hostile_tokens_are_shown_as_text_live(app, engine):
    engine.hostile = True
    app.fill("Prompt", "<img src=x onerror=alert(4)> ${alert(5)} {{x}} `")
    app.generate()
    app.wait_for_steps(8)
    app.press("Stop")
    app.wait_for_state("ready")
    assert "${alert(1)}" in app.text()


def test_a_dropped_file_that_is_no_trace_leaves_the_view_as_it_was(app, tmp_path):
    app.tab("Replay")
    app.pick("Sample", "plain story")
    (tmp_path / "notes.ddviz").write_text("just notes")
    app.drop(tmp_path / "notes.ddviz")
    app.page.locator(".ddviz-notice.ddviz-is-error:visible").wait_for()
    assert (
        app.page.locator(".ddviz-notice:visible").inner_text().startswith("notes.ddviz: not a .ddviz trace")
    )
    assert app.steps() == 12


def test_a_damaged_file_shows_what_could_be_read(app, tmp_path):
    path = write_trace(tmp_path / "damaged.ddviz", steps=10).path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    app.tab("Replay")
    app.drop(path)
    app.wait_for_new_view()
    app.viewer().locator(".ddviz-banner").get_by_text("damaged at byte").wait_for()
    assert app.badge() == "RECORDED"


def test_a_finished_run_is_among_the_saved_runs(app):
    app.fill("Prompt", "a run worth keeping")
    app.fill("Max tokens", "12")
    app.press("Generate")
    app.viewer().get_by_text("end: max tokens reached").wait_for()
    app.tab("Replay")
    app.pick("Saved run", "ddtree a run worth keeping")
    assert app.badge() == "RECORDED"
    assert "a-run-worth-keeping" in app.viewer().locator(".ddviz-name").inner_text()


def test_the_viewer_leaves_no_global_name_in_the_page(app):
    app.tab("Replay")
    app.pick("Sample", "plain story")
    assert app.page.evaluate("typeof ddviz") == "undefined"
    assert app.page.evaluate("Object.keys(window).filter((name) => /ddviz|d3/i.test(name))") == []
