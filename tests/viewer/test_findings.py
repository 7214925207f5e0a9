"""The list of the doctor's findings, in a real chromium."""

import copy

import msgspec
import pytest

from ddviz.check.doctor import examine
from ddviz.trace import load
from ddviz.viewer import export_html
from tests.browser import wait_until, watched_page
from tests.check.test_doctor import LONG, a_pause_in_verify, pick, positions_by_index, steps_of
from tests.synthetic import events_of, recorded
from tests.viewer.test_browser import mount, open_page, settle

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)> \u202ebackwards"


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    """A page on a trace with positions by index and a slow verify in step 1, a wrong count, hostile words."""
    events = copy.deepcopy(events_of(LONG))
    positions_by_index(events)
    a_pause_in_verify(events)
    events[-1].steps += 1
    events[-1].finish_reason, events[-1].message = "error", HOSTILE
    folder = tmp_path_factory.mktemp("sick")
    trace = load(recorded(folder / "sick.ddviz", events))
    findings = msgspec.to_builtins(examine(trace))
    return export_html(trace, folder / "sick.html", findings=findings), findings


def items(page):
    return page.locator(".ddviz-finding")


def says(page):
    return page.locator(".ddviz-findings header [role=status]").inner_text()


def state(page, name):
    return page.evaluate(f"ddviz.view.state().{name}")


def test_findings_stand_in_a_list_and_a_click_goes_to_step_and_node(browser, sick):
    path, findings = sick
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, path)
        wait_until(page, "ddviz.view.state().steps > 0")
        assert items(page).count() == len(findings)
        faults = sum(finding["severity"] == "fault" for finding in findings)
        assert says(page) == f"{faults} findings, {len(findings) - faults} notice"
        second = findings[1]
        assert second["rule"] == "positions" and second["node"] is not None
        items(page).nth(1).click()
        settle(page, second["step"])
        assert (state(page, "step"), state(page, "node")) == (second["step"], second["node"])
        wait_until(page, f"location.hash.includes('step={second['step']}&node={second['node']}')")
        assert items(page).nth(1).get_attribute("aria-expanded") == "true"
        assert second["cause"] in page.locator(".ddviz-finding-more:visible").inner_text()
        items(page).nth(0).click()
        assert page.locator(".ddviz-finding-more:visible").count() == 1
        assert watched.trouble == []


def test_a_fault_and_a_notice_differ_by_word_and_sign(browser, sick):
    path, findings = sick
    with watched_page(browser) as watched:
        open_page(watched.page, path)
        for severity, sign in (("fault", "✗"), ("notice", "i")):
            place = next(i for i, finding in enumerate(findings) if finding["severity"] == severity)
            item = items(watched.page).nth(place)
            assert item.locator(".ddviz-finding-sign").inner_text() == sign
            kind = item.locator(".ddviz-finding-kind").inner_text()
            assert kind == f"{severity}: {findings[place]['rule']}"


def test_the_keyboard_reaches_every_finding(browser, sick):
    path, findings = sick
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, path)
        page.keyboard.press("d")
        settle(page, findings[0]["step"])
        assert state(page, "node") == findings[0]["node"]
        page.keyboard.press("d")
        wait_until(page, f"ddviz.view.state().node === {findings[1]['node']}")
        page.keyboard.press("Shift+D")
        wait_until(page, f"ddviz.view.state().node === {findings[0]['node']}")
        items(page).nth(0).focus()
        for _ in range(len(findings)):  # one more than there are
            page.keyboard.press("ArrowDown")
        focused = page.evaluate("document.querySelector('.ddviz-host').shadowRoot.activeElement.textContent")
        assert findings[-1]["message"] in focused and findings[-1]["step"] is None
        before = state(page, "step")
        page.keyboard.press("Enter")  # of the whole trace: it opens, and goes nowhere
        assert page.locator(".ddviz-finding-more:visible").count() == 1
        assert state(page, "step") == before


def test_what_a_trace_brings_in_is_text(browser, sick):
    path, _ = sick
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, path)
        assert HOSTILE in page.locator(".ddviz-finding-message").all_text_contents()[-2]
        assert page.locator(".ddviz-findings img").count() == 0
        assert watched.trouble == []


def test_a_clean_trace_says_no_findings_and_a_page_without_a_list_has_none(browser, traces, tmp_path):
    trace = traces["greedy"]
    with watched_page(browser) as watched:
        open_page(watched.page, export_html(trace, tmp_path / "clean.html", findings=[]))
        assert says(watched.page) == "no findings"
        assert items(watched.page).count() == 0
        watched.page.keyboard.press("d")
        assert "no findings" in watched.page.locator(".ddviz-scrubber").inner_text()
        open_page(watched.page, export_html(trace, tmp_path / "none.html"))
        assert watched.page.locator(".ddviz-findings").is_hidden()


def test_a_run_is_examined_when_it_has_ended_and_once(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=3)
        page.evaluate("""() => {
          window.asked = 0;
          const words = { rule: "mask", severity: "fault", message: "m", cause: "c", look_at: "l" };
          const found = { ...words, step: 2, node: 1 };
          const source = { poll: stub.poll, step: stub.step,
            findings: async () => (asked++, { findings: [found] }) };
          view.update({ source, live: true });
        }""")
        wait_until(page, "view.state().steps === 3")
        assert says(page) == "examined when the run ends"
        page.evaluate("stub.grown = 12; stub.ended = true")
        wait_until(page, "view.state().end === 'length'")
        page.locator(".ddviz-finding").wait_for()
        page.wait_for_timeout(400)
        assert (says(page), page.evaluate("asked")) == ("1 finding", 1)


def test_a_refusal_is_said(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["greedy"], live=False)
        page.evaluate("""() => view.update({ source: { poll: stub.poll, step: stub.step,
          findings: async () => { throw new Error("disk gone"); } } })""")
        wait_until(page, "view.state().drawMs !== null")
        page.locator(".ddviz-findings").wait_for()
        assert says(page) == "can't be examined (disk gone)"


def test_findings_name_steps_by_index_where_some_were_dropped(browser, tmp_path):
    events = copy.deepcopy(events_of(LONG))
    lost = pick(events, bool)
    events.remove(lost)
    last = steps_of(events)[-1]
    last.commit.committed_len += 1
    trace = load(recorded(tmp_path / "lost.ddviz", events))
    found = msgspec.to_builtins(examine(trace, ["commit"]))
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, export_html(trace, tmp_path / "lost.html", findings=found))
        items(page).nth(0).click()
        settle(page, len(trace.steps) - 1)
        assert found[0]["step"] == last.index == len(trace.steps)
