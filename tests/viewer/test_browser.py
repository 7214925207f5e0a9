"""The viewer in a real chromium: what is drawn, the keyboard, hostile text, a live source, the end."""

import itertools
import json

import pytest

from ddviz.trace.tokens import pieces
from ddviz.viewer import assets, poll_view, step_view
from tests.browser import wait_until, watched_page
from tests.viewer.fixtures import HOSTILE
from tests.viewer.test_html import nine_digits

pytestmark = pytest.mark.browser

# A source that has `grown` steps so far; `fail` makes it refuse, `calls` counts what it was asked. Step
# `broken` can't be read, and while `slow` a step comes when `release()` is called.
STUB = """
(data) => {
  window.stub = { grown: data.grown, fail: false, calls: 0, status: null, ended: false };
  Object.assign(stub, { slow: false, broken: null, message: null });
  const source = {
    async poll(since) {
      stub.calls++;
      if (stub.fail) throw new Error("engine gone");
      const rows = data.poll.steps.slice(since, stub.grown);
      const end = stub.ended && since + rows.length === stub.grown ? "length" : null;
      const { status, message, grown: total } = stub;
      return { ...data.poll, since, total, steps: rows, end, end_message: end && message, status };
    },
    async step(i) {
      if (i === stub.broken) throw new Error("disk gone");
      if (stub.slow) await new Promise((release) => (stub.release = release));
      return data.steps[i];
    },
  };
  Object.assign(stub, source);
  window.chosen = [];
  window.view = ddviz.mount(document.querySelector("main"), source,
    { live: data.live, onSelect: (step, node) => chosen.push([step, node]) });
}
"""


def open_page(page, path):
    page.goto(path.as_uri())
    wait_until(page, "ddviz.view.state().drawMs !== null")


def mount(page, trace, grown=None, live=True):
    page.set_content("<!doctype html><body><main></main>")
    page.add_script_tag(content=assets().js)
    data = {
        "poll": poll_view(trace),
        "steps": [step_view(trace, i) for i in range(len(trace.steps))],
        "grown": len(trace.steps) if grown is None else grown,
        "live": live,
    }
    page.evaluate(STUB, data)


def mount_110_steps(page, traces):
    """Those of the sampled trace, over and over."""
    mount(page, traces["sampled"], live=False)
    page.evaluate(
        """() => view.update({ source: {
             poll: async (since) => {
               const { steps, ...rest } = await stub.poll(0);
               const rows = Array.from({ length: 110 }, (_, i) => ({ ...steps[i % 12], i, index: i }));
               return { ...rest, key: "110", since, total: 110, steps: rows };
             },
             step: async (i) => ({ ...(await stub.step(i % 12)), i, index: i }) } })"""
    )
    wait_until(page, "view.state().steps === 110 && view.state().drawMs !== null")


def current_step(page):
    return page.locator(".ddviz-counter b").inner_text()


def nodes(page, status):
    return page.locator(f"g.ddviz-node.ddviz-{status}:visible").filter(has=page.locator(".ddviz-label"))


def settle(page, step, name="ddviz.view"):
    wait_until(page, f"{name}.state().step === {step}")
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")


# A recorded trace ---------------------------------------------------------------------------------


def test_a_page_shows_the_first_step_with_its_statuses(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        assert page.locator(".ddviz-badge").inner_text() == "RECORDED"
        assert current_step(page) == "0"
        assert nodes(page, "root").count() == 1
        assert nodes(page, "bonus").count() == 1
        for status in ("rejected", "unreached"):
            assert nodes(page, status).count() == sum(n["status"] == status for n in view["nodes"])
        assert nodes(page, "accepted").count() == len(view["path"]) - 1
        labels = page.locator("g.ddviz-node.ddviz-accepted:visible .ddviz-label").all_text_contents()
        assert all(label.startswith("✓ ") for label in labels)
        assert page.locator(".ddviz-edge-accepted").count() == len(view["path"]) - 1


def test_the_tree_speaks(browser, pages, traces):
    node = step_view(traces["sampled"], 0)["nodes"][1]
    with watched_page(browser) as watched:
        open_page(watched.page, pages["sampled"])
        assert watched.page.get_by_role("tree").get_attribute("aria-label") == "Draft tree of step 0"
        spoken = watched.page.locator('[role=treeitem][data-node="1"]').get_attribute("aria-label")
        assert spoken.startswith(f"node 1, token {node['label']}, {node['status']}, target probability ")


def test_the_keyboard_steps_and_jumps(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        for key, expected in (
            ("ArrowRight", 1),
            ("ArrowRight", 2),
            ("ArrowLeft", 1),
            ("End", 11),
            ("ArrowRight", 11),
        ):
            page.keyboard.press(key)
            settle(page, expected)
            assert current_step(page) == str(expected)
        page.keyboard.press("Home")
        settle(page, 0)


def test_the_keyboard_walks_the_tree(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.evaluate("ddviz.view.update({ node: 0 })")
        page.get_by_role("tree").focus()
        page.keyboard.press("]")
        first = view["nodes"][0]["children"][0]
        assert page.evaluate("ddviz.view.state().node") == first
        page.keyboard.press("ArrowDown")
        assert page.evaluate("ddviz.view.state().node") == view["nodes"][0]["children"][1]
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Shift+ArrowLeft")
        assert page.evaluate("ddviz.view.state().node") == 0
        page.locator(".ddviz-card").wait_for()


def test_up_and_down_walk_the_tree_wherever_the_focus_is_but_in_what_scrolls(browser, pages, traces):
    children = step_view(traces["sampled"], 0)["nodes"][0]["children"]
    focus = "document.querySelector('.ddviz-host').shadowRoot.querySelector('%s').focus()"
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])  # the focus is on the viewer
        page.evaluate("ddviz.view.update({ node: 0 })")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("ddviz.view.state().node") == children[0], "the root stands alone: to its child"
        page.evaluate(focus % ".ddviz-counter")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("ddviz.view.state().node") == children[1]
        page.keyboard.press("ArrowUp")
        page.evaluate("ddviz.view.update({ step: 11, node: 0 })")
        settle(page, 11)
        page.set_viewport_size({"width": 1280, "height": 420})
        pane = "document.querySelector('.ddviz-host').shadowRoot.querySelector('.ddviz-text-pane [tabindex]')"
        assert page.evaluate(f"{pane}.scrollHeight > {pane}.clientHeight")
        page.evaluate(f"{pane}.scrollTop = 0, {pane}.focus()")
        page.keyboard.press("ArrowDown")
        wait_until(page, f"{pane}.scrollTop > 0")
        assert page.evaluate("ddviz.view.state().node") == 0


def test_keys_step_though_nothing_has_the_focus_and_one_viewer_alone(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        page.evaluate("window.first = view, document.body.append(document.createElement('main'))")
        page.evaluate("window.second = ddviz.mount(document.querySelectorAll('main')[1], stub)")
        wait_until(page, "second.state().drawMs !== null")
        page.evaluate("second.update({ step: 3 }), document.activeElement.blur()")
        settle(page, 3, "second")
        page.keyboard.press("ArrowRight")
        settle(page, 1, "first")
        page.keyboard.press("ArrowDown")  # the page's own: it scrolls
        assert page.evaluate("[first.state().node, second.state().step]") == [None, 3]
        page.evaluate("document.querySelector('main').style.display = 'none'")  # another tab
        page.keyboard.press("ArrowRight")
        settle(page, 4, "second")
        page.evaluate("second.destroy()")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("[first.state().step, second.state().step]") == [1, 4]
        page.evaluate("document.querySelector('main').style.display = ''")
        page.evaluate("document.body.append(document.createElement('input'))")
        page.evaluate("document.querySelector('input').focus()")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("first.state().step") == 1


def test_a_step_number_of_sixteen_digits_runs_over_no_button(browser, traces):
    box = "document.querySelector('.ddviz-host').shadowRoot.querySelector('.ddviz-transport')"
    with watched_page(browser, width=360) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        for index in (0, 9007199254740000):
            page.evaluate(f"{box}.querySelector('.ddviz-counter b').textContent = '{index}'")
            boxes = f"[...{box}.children].filter((e) => !e.hidden).map((e) => e.getBoundingClientRect())"
            places = page.evaluate(f"{boxes}.map((box) => [box.left, box.right, box.top, box.bottom])")
            assert all(left >= 0 and right <= 360 for left, right, _, _ in places)
            for one, other in itertools.combinations(places, 2):
                beside = one[0] >= other[1] or other[0] >= one[1]
                assert beside or one[2] >= other[3] or other[2] >= one[3]


def test_a_click_on_a_node_fills_the_panel(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    rejected = next(node for node in view["nodes"] if node["status"] == "rejected")
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.locator(f'[data-node="{rejected["i"]}"] .ddviz-shape').click()
        panel = page.locator(".ddviz-detail-pane")
        panel.get_by_text("✗ rejected", exact=True).wait_for()
        assert panel.locator(".ddviz-token-large").inner_text() == rejected["label"]
        assert (
            panel.locator(".ddviz-why").inner_text() == rejected["why"][0].upper() + rejected["why"][1:] + "."
        )
        assert str(rejected["id"]) in panel.locator(".ddviz-grid").inner_text()


def test_the_bonus_names_the_node_before_it_by_its_status(browser, pages, traces):
    views = [step_view(traces["sampled"], i) for i in range(len(traces["sampled"].steps))]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        for view, sign in (
            (next(v for v in views if v["path"] == [0]), "◆"),
            (next(v for v in views if len(v["path"]) > 1), "✓"),
        ):
            page.evaluate(f"ddviz.view.update({{ step: {view['i']}, node: 'bonus' }})")
            settle(page, view["i"])
            link = page.get_by_role("button", name=f"Select node {view['path'][-1]}", exact=True)
            assert link.inner_text() == f"{sign} {view['path'][-1]}"


def test_a_click_on_text_goes_to_its_step_and_token(browser, pages, traces):
    view = step_view(traces["sampled"], 5)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.locator('.ddviz-chunk[data-step="5"] .ddviz-t').last.click()
        settle(page, 5)
        assert page.evaluate("ddviz.view.state().node") == "bonus"
        assert page.locator(".ddviz-token-large").inner_text() == view["bonus"]["label"]
        assert page.locator(".ddviz-current").get_attribute("data-step") == "5"


def test_the_text_pane_holds_the_exact_output(browser, pages, traces):
    with watched_page(browser) as watched:
        open_page(watched.page, pages["greedy"])
        watched.page.locator(".ddviz-end").evaluate("(e) => e.remove()")
        shown = watched.page.locator(".ddviz-output").inner_text()
    assert shown == "".join(traces["greedy"].tokens.pieces(traces["greedy"].output_ids))


def test_a_drag_along_the_scrubber_goes_through_steps(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        box = page.locator(".ddviz-chart").bounding_box()
        page.mouse.move(box["x"] + 18 * 3 + 9, box["y"] + 20)
        page.mouse.down()
        settle(page, 3)
        page.mouse.move(box["x"] + 18 * 7 + 9, box["y"] + 20)
        settle(page, 7)
        page.mouse.up()
        assert "accept length" in page.locator(".ddviz-tip").inner_text()


def test_panning_and_zooming_end_at_fit(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        where = lambda: page.locator(".ddviz-svg > g").get_attribute("transform")  # noqa: E731
        before = where()
        box = page.get_by_role("tree").bounding_box()
        page.mouse.move(box["x"] + box["width"] - 40, box["y"] + box["height"] - 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 90, box["y"] + box["height"] - 80, steps=4)
        page.mouse.up()
        assert where() != before
        page.get_by_role("button", name="Zoom in (+)").click()
        page.get_by_role("button", name="Fit the whole tree (0)").click()
        assert where() == before


def test_play_goes_on_by_itself_until_the_reader_chooses(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.keyboard.press("p")
        wait_until(page, "ddviz.view.state().step === 2")
        page.keyboard.press("Home")
        page.wait_for_timeout(1200)
        assert page.evaluate("ddviz.view.state().step") == 0


def test_the_arrays_of_a_step_show_links_positions_and_mask(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.get_by_role("button", name="Show the step as arrays").click()
        rows = page.locator(".ddviz-table-box tbody tr")
        assert rows.count() == len(view["nodes"])
        cells = rows.nth(3).locator("td").all_inner_texts()
        node = view["nodes"][3]
        numbers = [
            node[k] for k in ("parent", "depth", "rank", "next_token", "next_sibling", "position", "slot")
        ]
        assert cells[0] == node["label"]
        assert cells[1:] == [str(number) for number in [*numbers, node["flat"]]]
        page.locator("canvas.ddviz-mask").wait_for()
        assert page.locator(".ddviz-odd").count() == 0
        rows.nth(3).click()
        assert page.evaluate("ddviz.view.state().node") == 3


def test_a_long_table_scrolls_to_the_selected_node(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        page.get_by_role("button", name="Show the step as arrays").click()
        box = page.get_by_role("region", name="Arrays of the step").bounding_box()
        for node in (500, 3, 900):
            page.evaluate(f"ddviz.view.update({{ node: {node} }})")
            settle(page, 0)
            row = page.locator("tr[aria-current=true]").bounding_box()
            assert box["y"] + 22 <= row["y"] <= box["y"] + box["height"] - 22
        page.get_by_role("button", name="Show the step as arrays").click()
        assert page.locator(".ddviz-table-box .ddviz-table").count() == 0


# Keys and focus -----------------------------------------------------------------------------------


def test_the_arrays_and_the_keys_are_of_the_same_step(browser, pages, traces):
    """The tree is hidden behind the arrays, yet [ and ] walk the tree of the step that is shown."""
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.get_by_role("button", name="Show the step as arrays").click()
        page.wait_for_timeout(100)
        for step in range(1, 5):
            page.keyboard.press("ArrowRight")
            settle(page, step)
            page.evaluate("ddviz.view.update({ node: 0 })")
            page.keyboard.press("]")
            first = step_view(traces["sampled"], step)["nodes"][0]["children"][0]
            assert page.evaluate("ddviz.view.state().node") == first
            page.keyboard.press("[")
            assert page.evaluate("ddviz.view.state().node") == 0
        page.locator("tr[aria-current=true]").get_by_text("◆ 0").wait_for()


@pytest.mark.parametrize("arrays", [False, True])
def test_a_link_that_goes_leaves_the_keys_working(browser, pages, arrays):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        if arrays:
            page.get_by_role("button", name="Show the step as arrays").click()
        page.locator(".ddviz-detail-pane button").first.click()
        page.keyboard.press("ArrowRight")
        settle(page, 1)
        page.locator(".ddviz-detail-pane button").first.focus()
        for step in (2, 3):  # the first redraws the panel under the focus
            page.keyboard.press("ArrowRight")
            settle(page, step)


def test_the_end_of_a_run_takes_no_focus_away(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=4)
        settle(page, 3, "view")
        page.get_by_role("button", name="Follow the newest step").focus()
        page.evaluate("stub.ended = true")
        page.locator(".ddviz-end").wait_for()
        page.keyboard.press("ArrowLeft")
        settle(page, 2, "view")


def test_brackets_work_on_keyboards_that_need_alt_for_them(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        press = """(init) => document.querySelector(".ddviz-host").shadowRoot.firstElementChild.dispatchEvent(
            new KeyboardEvent("keydown", { bubbles: true, cancelable: true, composed: true, ...init }))"""
        page.evaluate("ddviz.view.update({ node: 0 })")
        page.evaluate(press, {"key": "]", "altKey": True, "ctrlKey": True, "modifierAltGraph": True})
        assert page.evaluate("ddviz.view.state().node") == 1
        page.evaluate(press, {"key": "[", "ctrlKey": True})  # the browser's
        page.evaluate(press, {"key": "p", "altKey": True})
        assert page.evaluate("ddviz.view.state().node") == 1
        page.evaluate(press, {"key": "[", "altKey": True})
        assert page.evaluate("ddviz.view.state().node") == 0


def test_toggles_say_whether_they_are_down(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        for name in ("Show the step as arrays", "Wide: give the tree the whole width"):
            pressed = page.get_by_role("button", name=name).get_attribute
            assert pressed("aria-pressed") == "false"
            page.get_by_role("button", name=name).click()
            assert pressed("aria-pressed") == "true"
        assert page.get_by_role("img", name="Attention mask").is_visible()


def test_a_status_is_spoken_once(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=0)
        page.evaluate("stub.status = { state: 'loading', message: 'Loading the target', progress: 0.4 }")
        status = page.get_by_role("status").get_by_text("Loading the target")
        status.wait_for()
        assert page.get_by_role("progressbar").get_attribute("aria-label") == "Progress of the engine"
        status.evaluate(
            "(e) => { window.said = 0; new MutationObserver(() => said++).observe(e, { childList: true }); }"
        )
        calls = page.evaluate("stub.calls")
        wait_until(page, f"stub.calls > {calls + 1}")
        assert page.evaluate("said") == 0


# Hostile text -------------------------------------------------------------------------------------


def test_hostile_tokens_are_text_everywhere(browser, pages, traces):
    with watched_page(browser) as watched:  # fails on a dialog, an exception, a request, a policy violation
        page = watched.page
        open_page(page, pages["hostile"])
        for step in range(0, len(traces["hostile"].steps), 3):
            page.evaluate(f"ddviz.view.update({{ step: {step}, node: 1 }})")
            settle(page, step)
            page.locator('[data-node="1"] .ddviz-shape').hover()
        text = page.locator(".ddviz-output").inner_text()
        for hostile in HOSTILE[:7]:
            assert pieces([hostile])[0].strip() in text
        assert page.locator(".ddviz img, .ddviz script").count() == 0


# Large and small ----------------------------------------------------------------------------------


def test_a_thousand_nodes_are_drawn_on_a_canvas(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        page.locator("canvas.ddviz-canvas").wait_for()
        assert page.locator("g.ddviz-node:visible .ddviz-label").count() == 0
        painted = page.locator("canvas.ddviz-canvas").evaluate(
            "(c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0)"
        )
        assert painted
        page.evaluate("ddviz.view.update({ node: 0 })")
        page.keyboard.press("]")
        assert page.locator(".ddviz-spoken").get_attribute("aria-label").startswith("node ")
        page.keyboard.press("[")
        page.locator(".ddviz-card").get_by_text("root").wait_for()


def test_a_thousand_nodes_seen_whole_use_height_and_width(browser, pages):
    painted = """(c) => {
      const { data, width, height } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
      const [xs, ys] = [[], []];
      for (let i = 3; i < data.length; i += 4) {
        if (data[i]) [xs[((i - 3) / 4) % width], ys[Math.floor(i / 4 / width)]] = [1, 1];
      }
      return [xs.length / width, ys.length / height];
    }"""
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        page.locator(".ddviz-plot").focus()
        page.keyboard.press("0")
        wide, tall = page.locator("canvas.ddviz-canvas").evaluate(painted)
        assert wide > 0.5 and tall > 0.9
        assert page.locator(".ddviz-hint").is_hidden()
        box = page.locator(".ddviz-plot").bounding_box()
        page.mouse.move(box["x"] + 24, box["y"] + 18)  # the root, however thin
        page.locator(".ddviz-card").get_by_text("root").wait_for()


def test_the_panes_fit_any_column(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        for width in (1920, 940, 700, 420):
            page.set_viewport_size({"width": width, "height": 900})
            boxes = [
                page.locator(f".ddviz-{name}-pane").bounding_box() for name in ("text", "tree", "detail")
            ]
            assert all(box["x"] >= 0 and box["x"] + box["width"] <= width + 1 for box in boxes)
            assert all(box["width"] >= 200 and box["height"] >= 200 for box in boxes)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_theme_follows_the_system_and_inside_gradio_its_dark_class(browser, traces):
    root = "document.querySelector('.ddviz-host').shadowRoot.querySelector('.ddviz')"
    colour = f"getComputedStyle({root}).backgroundColor"
    with watched_page(browser, color_scheme="dark") as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        dark = page.evaluate(colour)
        page.emulate_media(color_scheme="light")
        wait_until(page, f"{colour} !== {json.dumps(dark)}")
        page.evaluate("document.querySelector('main').className = 'gradio-container'")
        page.evaluate("document.body.classList.add('dark')")
        wait_until(page, f"{colour} === {json.dumps(dark)}")


def test_the_mask_follows_the_theme(browser, pages):
    pixel = "(c) => Array.from(c.getContext('2d').getImageData(2, 4, 1, 1).data).join()"
    with watched_page(browser, color_scheme="dark") as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.get_by_role("button", name="Show the step as arrays").click()
        dark = page.locator("canvas.ddviz-mask").evaluate(pixel)
        page.emulate_media(color_scheme="light")
        page.wait_for_timeout(100)
        assert page.locator("canvas.ddviz-mask").evaluate(pixel) != dark


def test_the_hover_card_does_not_outlive_the_drawing_it_belongs_to(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.locator('[data-node="1"] .ddviz-shape').hover()
        page.locator(".ddviz-card").wait_for()
        page.set_viewport_size({"width": 1000, "height": 700})
        page.locator(".ddviz-card").wait_for(state="hidden")
        assert page.locator(".ddviz-ring-hover").is_hidden()


# A live source ------------------------------------------------------------------------------------


def test_a_live_view_waits_then_follows_the_newest_step(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=0)
        page.evaluate("stub.status = { state: 'loading', message: 'Loading the target', progress: 0.4 }")
        page.locator(".ddviz-waiting").get_by_text("Loading the target").wait_for()
        assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "40"
        page.evaluate("stub.status = null, stub.grown = 3")
        settle(page, 2, "view")
        assert page.locator(".ddviz-badge").inner_text() == "LIVE"
        assert page.locator(".ddviz-waiting").is_hidden()
        page.evaluate("stub.grown = 5")
        settle(page, 4, "view")
        assert page.locator(".ddviz-chunk").count() == 5


def test_choosing_an_older_step_stops_following_until_asked_again(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=4)
        settle(page, 3, "view")
        page.locator(".ddviz").focus()
        page.keyboard.press("ArrowLeft")
        settle(page, 2, "view")
        page.evaluate("stub.grown = 6")
        wait_until(page, "view.state().steps === 6")
        assert page.evaluate("view.state().step") == 2
        assert (
            page.get_by_role("button", name="Follow the newest step").get_attribute("aria-pressed") == "false"
        )
        page.keyboard.press("f")
        settle(page, 5, "view")
        assert page.evaluate("view.state().follow") is True


def test_polling_stops_with_the_end_and_the_badge_says_so(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=2)
        page.evaluate("stub.grown = 12, stub.ended = true")
        page.locator(".ddviz-end").get_by_text("end: max tokens reached").wait_for()
        assert page.locator(".ddviz-badge").inner_text() == "RECORDED"
        calls = page.evaluate("stub.calls")
        page.wait_for_timeout(400)
        assert page.evaluate("stub.calls") == calls


def test_a_source_that_fails_is_named_and_tried_again(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=3)
        settle(page, 2, "view")
        page.evaluate("stub.fail = true")
        page.locator(".ddviz-banner").get_by_text("engine gone").wait_for()
        assert page.locator(".ddviz-chunk").count() == 3
        page.evaluate("stub.fail = false, stub.grown = 4")
        settle(page, 3, "view")
        assert page.locator(".ddviz-banner").is_hidden()


def test_a_step_that_cannot_be_read_is_named_until_one_can(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        page.evaluate("stub.broken = 4, view.update({ step: 4 })")
        page.locator(".ddviz-banner").get_by_text("Step 4 can't be read (disk gone).").wait_for()
        page.evaluate("view.update({ step: 5 })")
        page.get_by_text("step 5 ·").wait_for()
        assert page.locator(".ddviz-banner").is_hidden()


def test_why_a_run_failed_stays_in_view(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=2)
        page.evaluate("stub.message = 'out of memory', stub.ended = true, stub.grown = 4")
        page.locator(".ddviz-banner").get_by_text("out of memory").wait_for()
        page.evaluate("view.update({ live: true })")  # asks again
        page.wait_for_timeout(300)
        assert page.locator(".ddviz-banner").inner_text() == "out of memory"


def test_a_click_on_a_node_chooses_it_though_the_next_step_is_on_its_way(browser, traces):
    """While a live run is followed, what is asked for is nearly always ahead of what is shown."""
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=3)
        settle(page, 2, "view")
        page.evaluate("stub.slow = true, stub.grown = 4")
        wait_until(page, "view.state().step === 3")
        page.locator('[data-node="1"] .ddviz-shape').click()
        page.evaluate("stub.release()")
        page.wait_for_timeout(100)
        state = page.evaluate("view.state()")
        assert (state["step"], state["node"], state["follow"]) == (2, 1, False)
        assert page.evaluate("chosen") == [[2, 1]]
        assert current_step(page) == "2"
        assert "step 2 ·" in page.locator(".ddviz-tree-pane .ddviz-pane-head").inner_text()


def test_a_late_step_does_not_replace_a_newer_one(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=6)
        settle(page, 5, "view")
        page.evaluate("view.update({ step: 0 })")
        settle(page, 0, "view")
        page.evaluate("stub.slow = true, view.update({ step: 1 })")
        page.evaluate("view.update({ follow: true }), view.update({ node: 2 })")  # 5 is remembered
        settle(page, 5, "view")
        page.evaluate("stub.release()")
        page.wait_for_timeout(100)
        assert page.evaluate("view.state().node") == 2
        assert "step 5 ·" in page.locator(".ddviz-tree-pane .ddviz-pane-head").inner_text()


def test_a_node_that_the_step_lacks_is_the_default_one(browser, traces):
    path = step_view(traces["sampled"], 0)["path"]
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        for node in ("999", "-1", "'x'"):
            page.evaluate(f"view.update({{ node: {node} }})")
            settle(page, 0, "view")
            assert page.evaluate("view.state().node") is None
            assert page.locator(".ddviz-detail-pane").get_by_text(f"node {path[-1]}", exact=True).count() == 1


def test_play_after_a_live_run_follows_no_more(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=4)
        settle(page, 3, "view")
        page.evaluate("stub.ended = true")
        page.locator(".ddviz-end").wait_for()
        page.get_by_role("button", name="Play the steps (P)").click()
        settle(page, 0, "view")
        assert page.evaluate("view.state().follow") is False
        page.locator('[data-node="1"] .ddviz-shape').click()  # a choice ends playing
        page.wait_for_timeout(1000)
        assert page.evaluate("view.state().step") == 0


def test_the_prompt_stays_unfolded_while_the_first_step_is_awaited(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=0, live=False)
        page.evaluate(
            """(poll) => view.update({ live: true, source: {
                 poll: async (since) =>
                   ({ ...poll, total: 0, steps: [], prompt: ["word ".repeat(200)], end: null }),
                 step: async () => null } })""",
            poll_view(traces["greedy"]),
        )
        page.get_by_role("button", name="Show or fold the prompt").click()
        page.wait_for_timeout(700)
        assert page.get_by_role("button", name="Show or fold the prompt").inner_text() == "fold"


def test_another_request_is_drawn_though_its_steps_are_the_same_objects(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        where = lambda: page.locator(".ddviz-svg > g").get_attribute("transform")  # noqa: E731
        page.wait_for_timeout(100)
        before = where()
        page.get_by_role("button", name="Zoom in (+)").click()
        page.evaluate("view.update({ source: { poll: stub.poll, step: stub.step } })")
        page.wait_for_timeout(100)
        page.locator("g.ddviz-node:visible").first.wait_for()
        assert where() == before


def test_another_request_from_the_same_source_starts_afresh(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=4)
        settle(page, 3, "view")
        other = {
            "poll": poll_view(traces["greedy"]),
            "steps": [step_view(traces["greedy"], i) for i in range(2)],
        }
        page.evaluate(
            """(data) => view.update({ live: true, source: {
                 poll: async (since) =>
                   ({ ...data.poll, since, total: 2, steps: data.poll.steps.slice(since, 2), end: null }),
                 step: async (i) => data.steps[i] } })""",
            other,
        )
        wait_until(page, "view.state().steps === 2")
        settle(page, 1, "view")
        assert page.locator(".ddviz-name").inner_text() == "greedy"
        assert page.locator(".ddviz-chunk").count() == 2


def test_the_reader_is_told_about_choices_but_not_about_update(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        wait_until(page, "view.state().drawMs !== null")
        page.evaluate("view.update({ step: 4, node: 2 })")
        settle(page, 4, "view")
        assert page.evaluate("chosen") == []
        assert page.evaluate("view.state().node") == 2
        page.locator('[data-node="1"] .ddviz-shape').click()
        assert page.evaluate("chosen") == [[4, 1]]


def test_a_step_asked_for_before_it_is_there_is_shown_when_it_comes(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=3)
        settle(page, 2, "view")
        page.evaluate("view.update({ step: 6, node: 2 })")
        page.evaluate("stub.grown = 5")
        wait_until(page, "view.state().step === 4")
        page.evaluate("stub.grown = 9")
        settle(page, 6, "view")
        assert page.evaluate("view.state()") | {"drawMs": 0} == {
            "step": 6,
            "node": 2,
            "stage": None,
            "follow": False,
            "steps": 9,
            "end": None,
            "drawn": 6,
            "drawMs": 0,
        }


def test_thousands_of_steps_load_in_pieces_and_the_scrubber_reaches_the_last(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=0, live=False)
        page.evaluate(
            """(data) => view.update({ source: {
                 poll: async (since) => ({ ...data.poll, since, total: 3000, end: null,
                   steps: Array.from({ length: Math.min(500, 3000 - since) },
                     (_, k) => ({ ...data.poll.steps[k % 12], i: since + k, index: since + k })) }),
                 step: async (i) => ({ ...data.steps[i % 12], i, index: i }) } })""",
            {
                "poll": poll_view(traces["sampled"]),
                "steps": [step_view(traces["sampled"], i) for i in range(12)],
            },
        )
        wait_until(page, "view.state().steps === 3000")
        box = page.locator(".ddviz-chart").bounding_box()
        page.mouse.click(box["x"] + box["width"] - 1, box["y"] + 20)
        wait_until(page, "view.state().step >= 2990")
        page.keyboard.press("End")
        settle(page, 2999, "view")
        assert current_step(page) == "2999"


def test_a_page_that_is_still_read_says_so_and_end_goes_on_to_the_last(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=0, live=False)
        page.evaluate(
            """() => view.update({ source: {
                 poll: async (since) => {
                   if (since) await new Promise((go) => (stub.goOn = go));
                   stub.grown = 12;
                   const all = await stub.poll(since);
                   return { ...all, steps: all.steps.slice(0, since ? 12 : 5), end: since ? "length" : null };
                 },
                 step: stub.step } })"""
        )
        settle(page, 0, "view")
        assert page.locator(".ddviz-badge").inner_text() == "READING 41\u00a0%"
        assert page.locator(".ddviz-counter").inner_text() == "step 0 / 4 …"
        page.keyboard.press("End")
        settle(page, 4, "view")
        page.evaluate("stub.goOn()")
        settle(page, 11, "view")
        assert page.locator(".ddviz-badge").inner_text() == "RECORDED"
        assert page.locator(".ddviz-counter").inner_text() == "step 11 / 11"


def test_the_tree_says_reading_until_its_first_step_is_there(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], grown=0, live=False)
        page.evaluate("() => { stub.slow = true; stub.grown = 12; view.update({ source: { ...stub } }); }")
        wait_until(page, "view.state().steps === 12")
        assert page.locator(".ddviz-waiting:visible").inner_text().strip() == "Reading …"
        page.evaluate("stub.release()")
        page.locator("g.ddviz-node").first.wait_for()
        assert page.locator(".ddviz-waiting").is_hidden()


def test_no_button_moves_while_the_counter_counts(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount_110_steps(page, traces)
        places = []
        for step in (3, 109):
            page.evaluate(f"view.update({{ step: {step} }})")
            settle(page, step, "view")
            parts = (".ddviz-chart", ".ddviz-transport select")
            places.append([page.locator(part).bounding_box()["x"] for part in parts])
        assert places[0] == pytest.approx(places[1], abs=0.5)


def test_destroy_leaves_nothing_behind(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        page.goto("about:blank")
        page.evaluate(
            """() => {
              window.listening = 0; // to what a viewer listens outside its own element
              const mine = (type) => type === "visibilitychange" || type === "change";
              for (const target of [document, window, MediaQueryList.prototype]) {
                for (const [name, by] of [["addEventListener", 1], ["removeEventListener", -1]]) {
                  const original = target[name];
                  target[name] = function (...a) {
                    listening += by * mine(a[0]);
                    return original.apply(this, a);
                  };
                }
              }
            }"""
        )
        page.add_script_tag(content=assets().js)
        page.evaluate("document.body.append(document.createElement('main'))")
        data = {
            "poll": poll_view(traces["sampled"]),
            "steps": [step_view(traces["sampled"], 0)],
            "grown": 1,
            "live": True,
        }
        page.evaluate(STUB, data)
        settle(page, 0, "view")
        assert page.evaluate("listening") > 0
        page.evaluate("view.destroy()")
        calls = page.evaluate("stub.calls")
        page.wait_for_timeout(500)
        assert page.evaluate("stub.calls") == calls
        assert page.evaluate("listening") == 0
        assert page.evaluate("document.querySelector('main').childNodes.length") == 0
        assert page.evaluate("Object.keys(window).filter((k) => k.startsWith('ddviz'))") == []


# The packed page --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sampled", "hostile"])
def test_the_browser_unpacks_what_was_packed(browser, pages, traces, name):
    with watched_page(browser) as watched:
        open_page(watched.page, pages[name])
        for i in (0, 7, 8, 11):
            view = watched.page.evaluate(f"ddviz.pageSource(document).step({i})")
            assert view == nine_digits({**step_view(traces[name], i), "labels": view["labels"]})
            labels = step_view(traces[name], i)["labels"]
            assert {token: view["labels"][token] for token in labels} == labels
