"""Going through time: speed, jumps, finding, links, the list of keys, the scrubber's paint."""

import re

import pytest

from ddviz.trace import load
from ddviz.viewer import export_html, poll_view
from ddviz.viewer.html import HERE
from tests.browser import wait_until, watched_page
from tests.viewer.fixtures import write_trace
from tests.viewer.test_browser import current_step, mount, open_page, settle

pytestmark = pytest.mark.browser


def rows_of(trace):
    return poll_view(trace)["steps"]


def holding(trace, kind):
    rows = rows_of(trace)
    mean = sum(row["accept_len"] for row in rows) / len(rows)
    holds = {
        "low": lambda row: row["accept_len"] <= max(1, mean / 2),
        "top1": lambda row: row["top1"],
        "tie": lambda row: row["tie"],
    }[kind]
    return [row["i"] for row in rows if holds(row)]


# Playing --------------------------------------------------------------------------------------------


def test_play_goes_at_the_chosen_speed_and_passes_no_step_over(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        settle(page, 0, "view")
        page.evaluate(
            """() => {
              window.seen = [];
              setInterval(() => {
                const { step } = view.state();
                if (seen.at(-1) !== step) seen.push(step);
              }, 4);
            }"""
        )
        page.get_by_label("How fast to play").select_option("30 steps/s")
        page.get_by_role("button", name="Play the steps (P)").click()
        began = page.evaluate("performance.now()")
        wait_until(page, "view.state().step === 11")
        assert page.evaluate("performance.now()") - began < 3000
        assert page.evaluate("seen") == list(range(12))


def test_the_slower_speed_is_slower(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        settle(page, 0, "view")
        page.get_by_label("How fast to play").select_option("2 steps/s")
        page.locator(".ddviz").focus()
        page.keyboard.press("p")
        page.wait_for_timeout(1300)
        assert page.evaluate("view.state().step") in (1, 2)


def test_a_held_key_draws_every_step(browser, traces):
    """The next press of a held key counts when the step has been drawn."""
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        settle(page, 0, "view")
        page.locator(".ddviz").focus()
        page.evaluate("stub.slow = true")
        page.keyboard.down("ArrowRight")
        wait_until(page, "!!stub.release")
        for _ in range(8):
            page.keyboard.down("ArrowRight")
        assert page.evaluate("view.state().step") == 1
        page.evaluate("stub.slow = false; stub.release()")
        wait_until(page, "stub.slow === false && view.state().drawMs !== null")
        page.wait_for_timeout(100)
        page.keyboard.down("ArrowRight")
        page.keyboard.up("ArrowRight")
        settle(page, 2, "view")


# Jumps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "key"), [("low", "l"), ("top1", "x"), ("tie", "t")])
def test_a_jump_stops_at_each_step_of_its_kind_and_comes_back(browser, tmp_path, kind, key):
    trace = write_trace(tmp_path / "t.ddviz", steps=40, seed=4)
    page_path = export_html(trace, tmp_path / "t.html")
    wanted = [i for i in holding(trace, kind) if i > 0]
    assert wanted
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, page_path)
        for i in wanted[:4]:
            page.keyboard.press(key)
            settle(page, i)
        page.keyboard.press("End")
        page.keyboard.press(key)
        said = page.locator(".ddviz-announced")
        said.wait_for()
        assert said.inner_text().startswith("no later step: ")
        earlier = [i for i in wanted if i < 39][-1]
        page.keyboard.press(f"Shift+{key.upper()}")
        settle(page, earlier)


def test_jump_buttons_name_what_they_stop_at(browser, pages):
    with watched_page(browser) as watched:
        open_page(watched.page, pages["sampled"])
        for name in ("Next low acceptance", "Next rejected top-1", "Next near-tie"):
            watched.page.get_by_role("button", name=re.compile(name)).wait_for()


# Finding --------------------------------------------------------------------------------------------


def test_slash_finds_text_across_tokens_and_enter_goes_there(browser, pages, traces):
    rows = rows_of(traces["sampled"])
    row = next(row for row in rows if row["i"] > 1 and len(row["emitted"]) > 1)
    wanted = "".join(token["text"] for token in row["emitted"])[:14].strip()
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.keyboard.press("/")
        page.keyboard.type(wanted.upper() if wanted == wanted.upper() else wanted)
        sheet = page.get_by_role("dialog", name="Find token text")
        line = sheet.get_by_role("button").filter(has_text=f"step {row['i']}").first
        line.wait_for()
        assert line.locator("mark").inner_text() == wanted
        line.press("Enter")
        settle(page, row["i"])
        assert not sheet.is_visible()


def test_find_looks_among_the_candidates_of_the_step(browser, pages, traces):
    from ddviz.viewer import step_view

    node = step_view(traces["sampled"], 0)["nodes"][-1]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.keyboard.press("/")
        page.keyboard.type(node["label"].replace("·", " "))
        page.get_by_role("dialog").get_by_role("button").filter(has_text=f"node {node['i']}").first.click()
        assert page.evaluate("ddviz.view.state().node") == node["i"]


def test_hostile_text_is_found_and_stays_text(browser, pages, traces):
    output = "".join(token["text"] for row in rows_of(traces["hostile"]) for token in row["emitted"])
    texts = [text for text in ("<script>", "onerror", "{{", "${", "<!--", "⟨U+202E⟩") if text in output]
    assert len(texts) >= 4
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["hostile"])
        for text in texts:
            page.keyboard.press("/")
            page.keyboard.type(text)
            page.get_by_role("dialog").locator("mark").first.wait_for()
            assert page.get_by_role("dialog").locator("mark").first.inner_text() == text
            page.keyboard.press("Escape")


def test_g_goes_to_a_step_and_says_where_there_is_none(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.keyboard.press("g")
        page.keyboard.type("99")
        page.keyboard.press("Enter")
        page.get_by_text("There is no step 99. Steps are 0 to 11.").wait_for()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type("9")
        page.keyboard.press("Enter")
        settle(page, 9)
        assert current_step(page) == "9"


# Keys -----------------------------------------------------------------------------------------------


def test_the_list_of_keys_names_every_key(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.keyboard.press("?")
        sheet = page.get_by_role("dialog", name="Keys")
        sheet.wait_for()
        said = sheet.locator("dl > div")
        names = sheet.locator("kbd").all_inner_texts()
        declared = re.findall(r"^  \{ keys: \[(.*?)\], where", (HERE / "keys.js").read_text("utf-8"), re.M)
        assert said.count() == len(declared) - 1  # an exported page can't be exported
        assert len(names) == sum(len(re.findall(r'"[^"]+"', keys)) for keys in declared) - 1
        assert "export" not in sheet.inner_text()
        assert all(text.strip() for text in sheet.locator("dd").all_inner_texts())
        page.keyboard.press("ArrowRight")
        assert page.evaluate("ddviz.view.state().step") == 0  # the viewer's keys rest
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
        settle(page, 1)


# Links ----------------------------------------------------------------------------------------------


def test_the_address_of_a_page_opens_the_same_again(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.keyboard.press("g")
        page.keyboard.type("8")
        page.keyboard.press("Enter")
        settle(page, 8)
        page.keyboard.press(".")
        page.get_by_role("button", name="Wide: give the tree the whole width").click()
        page.evaluate("ddviz.view.update({ node: 2 })")
        wait_until(page, "location.hash.includes('node=2') && location.hash.includes('panels=wide')")
        link = page.url
        state = page.evaluate("ddviz.view.state()")
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(link)
        wait_until(page, "ddviz.view.state().drawMs !== null && ddviz.view.state().step === 8")
        again = page.evaluate("ddviz.view.state()")
        assert {**again, "drawMs": 0} == {**state, "drawMs": 0}
        assert page.locator(".ddviz-wide").count() == 1
        page.evaluate("location.hash = '#step=3&node=1'")
        settle(page, 3)
        wait_until(page, "ddviz.view.state().node === 1")


@pytest.mark.parametrize(
    "fragment", ["#step=999", "#step=-1", "#step=a&node=<b>&stage=x&panels=y,,z", "#%%%", "#="]
)
def test_a_link_that_makes_no_sense_opens_the_page(browser, pages, fragment):
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(pages["sampled"].as_uri() + fragment)
        wait_until(page, "ddviz.view.state().drawMs !== null")
        assert 0 <= page.evaluate("ddviz.view.state().step") <= 11


@pytest.mark.parametrize(
    ("fragment", "says"),
    [
        ("#step=500", "There is no step 500: the trace has 12 steps, from 0."),
        ("#step=abc", "There is no step abc."),
        ("#step=-3", "There is no step -3."),
        ("#step=5&node=999", "Step 5 has no node 999."),
        ("#stage=foo", "There is no stage foo."),
        ("#stage=toString", "There is no stage toString."),
        ("#panels=charts,batch", "charts and batch can't be shown together; this is charts."),
        ("#panels=foo", "There is no panel foo."),
    ],
)
def test_what_a_link_asks_for_in_vain_is_said_until_the_reader_goes_on(browser, pages, fragment, says):
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(pages["sampled"].as_uri() + fragment)
        wait_until(page, "ddviz.view.state().drawMs !== null")
        banner = page.locator(".ddviz-banner")
        assert banner.inner_text() == says
        page.keyboard.press("ArrowLeft")
        assert banner.is_hidden()
        for other in ("#step=3", fragment):  # as the page does when another link is pasted
            page.evaluate("(link) => ddviz.view.update(ddviz.readLink(link))", other)
            assert banner.is_hidden() or other == fragment
        banner.get_by_text(says).wait_for()


# The scrubber ---------------------------------------------------------------------------------------


def test_the_scrubber_is_painted_with_accept_length_and_stage_times(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.wait_for_timeout(100)
        colours = page.evaluate(
            """() => {
              const root = document.querySelector(".ddviz-host").shadowRoot;
              const canvas = root.querySelector(".ddviz-chart");
              const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
              const rows = [];
              for (let y = 0; y < canvas.height; y++) {
                const seen = new Set();
                for (let x = 0; x < 200; x++) {
                  const at = 4 * (y * canvas.width + x);
                  if (data[at + 3]) seen.add([data[at], data[at + 1], data[at + 2]].join());
                }
                rows.push([...seen]);
              }
              return rows;
            }"""
        )
        top = {colour for row in colours[:32] for colour in row}
        foot = {colour for row in colours[-16:-4] for colour in row}
        assert len(foot - top) >= 2  # draft and verify
        page.locator(".ddviz-chart").hover(position={"x": 40, "y": 20})
        tip = page.locator(".ddviz-tip").inner_text()
        assert "accept length" in tip and "verify" in tip


def test_a_trace_without_times_is_scrubbed_too(browser, tmp_path):
    import msgspec

    from ddviz.trace import Recorder

    whole = write_trace(tmp_path / "a.ddviz", steps=4)
    with Recorder(tmp_path / "b.ddviz", whole.header, whole.tokens.__getitem__) as recorder:
        recorder.prefill(whole.prefills[0][1])
        for step in whole.steps:
            recorder.step(msgspec.structs.replace(step, times_us={}))
    page_path = export_html(load(tmp_path / "b.ddviz"), tmp_path / "b.html")
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, page_path)
        page.get_by_label("How fast to play").select_option("as recorded")
        page.keyboard.press("Tab")
        page.locator(".ddviz-chart").hover(position={"x": 20, "y": 20})
        assert "accept length" in page.locator(".ddviz-tip").inner_text()
