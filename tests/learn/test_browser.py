"""The course in a real browser, by keyboard alone: every question answered wrong, then right."""

import pytest

from ddviz.learn.lesson import HERE, course, find_lesson, shipped_samples
from ddviz.learn.page import export_lesson
from ddviz.learn.temperature import lengths_at
from ddviz.trace import load
from tests.app.app_page import served_app
from tests.browser import wait_until, watched_page

pytestmark = pytest.mark.browser

FOCUSED = """(() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at?.getAttribute("aria-label") || at?.textContent || "";
})()"""
CHECK = "Check the answer"
TREE = "Draft tree"


class Pupil:
    """A page with a lesson, and somebody who has a keyboard."""

    def __init__(self, page):
        self.page = page

    def open(self, title):
        self.page.locator("h2", has_text=title).wait_for()
        wait_until(self.page, f"({FOCUSED}) !== undefined")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, name, back=False):
        """Press Tab until what has the focus is named so. Fails where Tab does not lead there."""
        seen = []
        for _ in range(90):
            focused = self.page.evaluate(FOCUSED)
            if focused.startswith(name):
                return
            seen.append(focused[:30])
            self.press("Shift+Tab" if back else "Tab")
        raise AssertionError(f"Tab does not lead to {name!r}, but to {seen}")

    def enter(self, name, back=False):
        self.tab_to(name, back)
        self.press("Enter")

    def hears(self, text):
        """What is said to an answer."""
        self.page.locator(".ddviz-learn-verdict", has_text=text).wait_for()

    def hears_wrong(self, text):
        self.hears(f"✗ {text}")
        assert self.page.locator(".ddviz-learn-next:visible").count() == 0

    def hears_right(self, text):
        self.hears(f"✓ {text}")
        self.page.locator(".ddviz-learn-right").wait_for()

    def reads_hint(self):
        self.enter("A hint", back=True)
        self.page.locator(".ddviz-learn-hint:visible").wait_for()


def slow(pupil):
    pupil.enter(CHECK)
    pupil.hears_wrong("Step 0 is too early.")
    pupil.tab_to(TREE)
    for step in range(1, 9):
        pupil.press("ArrowRight")
        pupil.page.locator(".ddviz-learn-check", has_text=f"Answer: step {step}").wait_for()
    pupil.press("Enter")
    pupil.hears_wrong("Step 8 is too late.")
    pupil.press("ArrowLeft", "Enter")
    pupil.hears_right("Step 7.")


def chain(pupil):
    pupil.tab_to(TREE)
    assert pupil.page.locator(".ddviz-learn-viewer g.ddviz-accepted:visible").count() == 0
    pupil.press(".")
    pupil.page.locator(".ddviz-in-commit", has_text="hidden until you answer").wait_for()
    pupil.press(",", "]", "Enter")
    pupil.hears_wrong("Not node 1. Equals the target's argmax after node 0")
    first = pupil.page.locator("g[data-node='1']:visible")
    assert first.locator(".ddviz-label").text_content().startswith("1: ")  # as the texts name it
    assert "not told yet" in first.get_attribute("aria-label")
    pupil.press("]")
    pupil.page.locator(".ddviz-learn-says").wait_for(state="hidden")  # it was about another answer
    pupil.press("]", "]", "]", "Enter")
    pupil.hears_right("Node 5.")
    pupil.page.locator(".ddviz-learn-viewer g.ddviz-accepted:visible").nth(3).wait_for()


def tree(pupil):
    pupil.tab_to(TREE)
    pupil.press("]", "Enter")
    pupil.hears_wrong("Not node 1. ")  # and why it was rejected
    pupil.press("ArrowDown", "Enter")
    pupil.hears_right("Node 2.")


def build(pupil):
    pupil.enter("Pop mid, first child of node 0")
    pupil.hears("Node 1 is mid. It offers left and ·+.")
    pupil.enter("Pop ·+, first child of node 1")
    pupil.hears_wrong("·+ has score -2.1")
    for offer in ("left, rank 1 below node 0", "right, rank 2", "·+, first child of node 1"):
        pupil.enter(f"Pop {offer}", back=True)
    pupil.hears("Node 4 is ·+.")
    for offer in ("·+, first child of node 2", "arr, rank 3"):
        pupil.tab_to(f"Pop {offer}", back=offer.startswith("arr"))
        pupil.press("Enter")
    pupil.hears_right("6 pops, as the engine made them.")


def encode(pupil):
    pupil.enter("next_token[0] = 1")
    pupil.hears_wrong("next_token[0] = 1 is right: node 1 is its first child.")
    pupil.press("ArrowDown", *["ArrowRight"] * 3, "Enter")
    pupil.hears("✓ next_sibling[3] should be 6. Mended.")
    pupil.press("ArrowDown", *["ArrowRight"] * 2, "Enter")
    pupil.hears("✓ position[5] should be 106. Mended.")
    pupil.press(*["ArrowDown"] * 10, *["ArrowLeft"] * 3, "Enter")
    pupil.hears_wrong("mask[9, 2] = 1 is right: node 2 is above node 9.")
    pupil.press("ArrowLeft", "Enter")
    pupil.hears_right("mask[9, 1] should be 0.")


def greedy(pupil):
    pupil.enter("node 1, mid")
    pupil.hears_wrong("Node 1 holds mid, the target wants left.")
    pupil.enter("No child")
    pupil.hears_wrong("A child of node 0 does hold left.")
    pupil.enter("node 2, left", back=True)
    pupil.enter("node 5, ·+")
    pupil.hears("✓ Node 5 is accepted.")
    pupil.enter("No child")
    pupil.hears_right("·right is the bonus, and the next root.")


def sampling(pupil):
    pupil.enter(CHECK)
    pupil.hears_wrong("With this coin node 4 is accepted.")
    pupil.tab_to("The coin of the root")
    pupil.press("End")
    pupil.enter(CHECK, back=True)
    pupil.hears("✓ Coin 0.999 rejects node 4. Now draw 1,000 times.")
    pupil.enter("Draw 1000 first tokens")
    pupil.hears_right("1,000 draws")


def commit(pupil):
    pupil.enter("Slot 105")
    pupil.hears_wrong("Node 1 is rejected: its row is not kept.")
    pupil.enter("Slot 104", back=True)
    pupil.hears("✓ The row of node 0 stays in slot 104.")
    pupil.enter("Slot 109")
    pupil.hears_wrong("Node 5 is on the path, but not next.")
    pupil.enter("Slot 106", back=True)
    pupil.enter("Slot 109")
    pupil.hears_right("The row of node 5 goes from slot 109 to slot 106.")


def tradeoffs(pupil):
    pupil.enter(CHECK)
    pupil.hears_wrong("Accept length 3")
    pupil.tab_to("budget")
    pupil.press(*["ArrowRight"] * 6)
    pupil.enter(CHECK, back=True)
    pupil.hears_wrong("Accept length 4, but a smaller budget has it too.")
    pupil.tab_to("budget")
    pupil.press("ArrowLeft")
    pupil.enter(CHECK, back=True)
    pupil.hears_right("Budget 21.")


def doctor(pupil):
    pupil.page.locator(".ddviz-learn-check", has_text="Answer: step 0, node 0").wait_for()
    pupil.enter(CHECK)
    pupil.hears_wrong("The doctor has nothing about")
    pupil.tab_to(TREE)
    for step in range(1, 10):
        pupil.press("ArrowRight")
        pupil.page.locator(f".ddviz-learn-viewer [aria-label='Draft tree of step {step}']").wait_for()
    pupil.page.locator(".ddviz-learn-check", has_text="step 9, node 4").wait_for()  # as the tree marks
    pupil.press("Enter")
    pupil.hears_wrong("The doctor has nothing about node 4 of step 9. By the recorded numbers")
    for rule, keys in [
        ("mask, step 4", [*["["] * 3, "]", "ArrowDown", "]"]),
        ("positions, step 7", [*["["] * 3, "]", "ArrowDown", "ArrowDown", "]", "ArrowDown"]),
        ("sampled-path, step 9", [*["["] * 2]),
    ]:
        pupil.enter(f"Rule {rule}", back=True)
        pupil.page.locator(".ddviz-learn-check", has_text=f"Answer: step {rule[-1]}, the bonus").wait_for()
        pupil.tab_to(CHECK, back=True)
        pupil.press("Enter")  # going there finds nothing yet
        pupil.hears_wrong(f"The doctor has nothing about the bonus of step {rule[-1]}.")
        pupil.tab_to(TREE)
        pupil.press(*keys, "Enter")
        pupil.hears(f"✓ {rule.split(',')[0]}")
    pupil.hears_right("sampled-path")


WALK = [slow, chain, tree, build, encode, greedy, sampling, commit, tradeoffs, doctor]


def test_the_whole_course_by_keyboard_without_the_network(browser, tmp_path):
    """One page of the app, from the first lesson to the last; each is answered wrong, then right."""
    titles = [lesson.title for lesson in course()]
    assert [answered.__name__ for answered in WALK] == [lesson.name.partition("-")[2] for lesson in course()]
    with (
        served_app(None, tmp_path, shipped_samples()) as url,
        watched_page(browser, storage_state=None) as watched,
    ):
        page, pupil = watched.page, Pupil(watched.page)
        page.goto(f"{url}#lesson=slow")
        for place, (answered, title) in enumerate(zip(WALK, titles, strict=True)):
            pupil.open(title)
            assert page.url.endswith(f"#lesson={answered.__name__}")
            answered(pupil)
            assert page.locator(".ddviz-learn-right").count() == 1
            page.get_by_text(f"{place + 1} of {len(WALK)} answered").wait_for()
            pupil.reads_hint()
            if place + 1 < len(WALK):
                pupil.enter("The next lesson")
        kept = page.evaluate("JSON.parse(localStorage.getItem('ddviz-learn'))")
        assert kept == [answered.__name__ for answered in WALK]
        pupil.enter("Lesson 3: From chain to tree (answered)", back=True)
        pupil.open(titles[2])
        pupil.hears("✓ You have answered this one.")
        page.go_back()
        pupil.open(titles[-1])
        pupil.hears("✓ You have answered this one.")
        page.go_forward()
        pupil.open(titles[2])
        page.locator(".ddviz-learn-next:visible").wait_for()
        pupil.enter("The glossary", back=True)
        page.locator("dialog[open] dt", has_text="accept length").wait_for()
        pupil.press("Escape")
        pupil.enter("Forget which lessons were answered", back=True)
        page.get_by_text(f"0 of {len(WALK)} answered").wait_for()
        page.goto(f"{url}#lesson=nosuch")
        page.reload()
        page.locator(".ddviz-learn-problem", has_text="'nosuch' is no lesson; the lessons").wait_for()
        assert watched.trouble == []


def test_a_lesson_is_one_file_that_works_offline_and_remembers(browser, tmp_path):
    page_file = export_lesson(find_lesson("greedy"), tmp_path / "greedy.html")
    assert "default-src &#x27;none&#x27;; script-src &#x27;sha256-" in page_file.read_text("utf-8")
    with watched_page(browser, offline=True) as watched:
        page, pupil = watched.page, Pupil(watched.page)
        asked = []
        watched.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri())
        pupil.open("Greedy verification")
        greedy(pupil)
        page.locator(".ddviz-learn-viewer .ddviz-verify").wait_for()  # `then: verify`
        page.reload()
        pupil.hears("✓ You have answered this one.")
        page.locator("a[href='#bonus']").first.press("Enter")
        page.locator("dialog[open] dt.ddviz-learn-found", has_text="bonus").wait_for()
        assert set(asked) == {page_file.as_uri()}


def test_a_browser_that_keeps_nothing_shows_lessons_all_the_same(browser, tmp_path):
    page_file = export_lesson(find_lesson("commit"), tmp_path / "commit.html")
    with watched_page(browser, color_scheme="dark") as watched:
        page, pupil = watched.page, Pupil(watched.page)
        watched.at_start(
            "for (const m of ['getItem', 'setItem']) Storage.prototype[m] = () => { throw Error(m); };"
        )
        page.goto(page_file.as_uri())
        pupil.open("The KV cache at commit")
        commit(pupil)
        assert page.locator(".ddviz-learn.ddviz-dark").count() == 1


BOX = """(() => {
  const find = (root, css) => [...root.querySelectorAll("*")].reduce(
    (found, one) => found ?? (one.matches(css) ? one : one.shadowRoot && find(one.shadowRoot, css)), null);
  const stage = find(document, ".ddviz-plot");
  const boxOf = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return [left, top, right, bottom];
  };
  const WHAT = { plot: stage, chosen: stage?.ariaActiveDescendantElement };
  const element = WHAT["NAME"] ?? find(document, "NAME");
  return element ? boxOf(element) : null;
})()"""


def box_of(page, name):
    """left, top, right, bottom of what a selector finds first; of the tree's `plot`, its `chosen` node."""
    script = BOX.replace("NAME", name)
    wait_until(page, f"{script} !== null")
    return page.evaluate(script)


def is_within(inner, outer):
    return all(a >= b for a, b in zip(inner[:2], outer[:2], strict=True)) and all(
        a <= b for a, b in zip(inner[2:], outer[2:], strict=True)
    )


def test_left_and_right_go_through_the_steps_from_the_text_too(browser, tmp_path):
    page_file = export_lesson(find_lesson("slow"), tmp_path / "slow.html")
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(page_file.as_uri())
        for step, clicked in enumerate([".ddviz-learn-check", "h2", "button[title^='A hint']"], start=1):
            page.locator(clicked).first.click()
            page.keyboard.press("ArrowRight")
            page.locator(".ddviz-learn-check", has_text=f"Answer: step {step}").wait_for()
        page.keyboard.press("ArrowLeft")
        page.locator(".ddviz-learn-check", has_text="Answer: step 2").wait_for()


def test_chain_and_tree_stand_side_by_side_where_there_is_room(browser, tmp_path):
    page_file = export_lesson(find_lesson("tree"), tmp_path / "tree.html")
    for width, height in [(1920, 1080), (1280, 800)]:
        with watched_page(browser, width, height) as watched:
            watched.page.goto(page_file.as_uri())
            chain, tree = box_of(watched.page, ".ddviz-learn-beside"), box_of(watched.page, "plot")
            assert chain[2] <= tree[0] if width > 1600 else chain[3] <= tree[1]
            assert tree[2] - tree[0] > 500 and tree[3] - tree[1] > 400
            first = box_of(watched.page, ".ddviz-learn-picture .ddviz-rejected")
            assert is_within(first, chain) and first[3] - first[1] > (20 if width > 1600 else 12)


def test_the_slider_of_temperature_says_what_was_recomputed(browser, tmp_path):
    lesson = find_lesson("tradeoffs")
    greedy, warm = (load(path) for path in lesson.runs)
    page_file = export_lesson(lesson, tmp_path / "page.html")
    with watched_page(browser) as watched:
        page, pupil = watched.page, Pupil(watched.page)
        page.goto(page_file.as_uri())
        pupil.tab_to("temperature")
        for key, temperature in [("Home", 0.0), ("End", 1.0)]:
            pupil.press(key)
            means = [lengths_at(run, (temperature,))[0].low for run in (greedy, warm)]
            place = f"at temperature {temperature:g}, at the steps recorded at 0"
            says = f"{means[0]:.2f} {place}; {means[1]:.2f} at"
            page.locator(".ddviz-learn-line-says", has_text=f"Mean accept length {says}").wait_for()
        pupil.press("ArrowLeft")
        page.locator(".ddviz-learn-line-says", has_text=" to ").wait_for()  # two bounds


def test_in_a_narrow_window_the_text_is_as_tall_as_its_words(browser, tmp_path):
    for name, width in [("build", 760), ("sampling", 850), ("commit", 390)]:
        page_file = export_lesson(find_lesson(name), tmp_path / f"{name}.html")
        with watched_page(browser, width, 900) as watched:
            watched.page.goto(page_file.as_uri())
            text = box_of(watched.page, ".ddviz-learn-text")
            assert is_within(box_of(watched.page, ".ddviz-learn-question"), text), (name, width)


@pytest.mark.parametrize("name", ["doctor", "docs/lesson-example.md"])
def test_the_chosen_node_is_in_sight_when_a_lesson_opens(browser, tmp_path, name):
    page_file = export_lesson(find_lesson(name), tmp_path / "page.html")
    with watched_page(browser) as watched:
        watched.page.goto(page_file.as_uri())
        assert is_within(box_of(watched.page, "chosen"), box_of(watched.page, "plot"))


def test_the_chosen_node_is_in_sight_after_going_to_a_finding(browser, tmp_path):
    page_file = export_lesson(find_lesson("doctor"), tmp_path / "page.html")
    with watched_page(browser) as watched:
        page, pupil = watched.page, Pupil(watched.page)
        page.goto(page_file.as_uri())
        for step in (4, 7, 9, 7):
            page.locator(f"button[title*='step {step}:']").click()
            page.locator(".ddviz-learn-check", has_text=f"step {step}, the bonus").wait_for()
            assert is_within(box_of(page, "chosen"), box_of(page, "plot")), step
            pupil.tab_to(TREE)
            pupil.press("[", *["ArrowUp"] * 9, *["ArrowDown"] * 3)  # elsewhere in the tree, which moves


def test_a_lesson_that_hides_nothing_has_room_for_its_tree_and_its_buttons(browser, tmp_path):
    text = (HERE / "lessons/07-sampling.md").read_text("utf-8")
    hide = "hide: topbar, scrubber, stages, text, numbers\n"
    assert hide in text
    (tmp_path / "own.md").write_text(text.replace(hide, "").replace("draws: 1000", "draws: 1"), "utf-8")
    for name, width, height in [(str(tmp_path / "own.md"), 1280, 800), ("sampling", 900, 600)]:
        page_file = export_lesson(find_lesson(name), tmp_path / "page.html")
        with watched_page(browser, width, height) as watched:
            page = watched.page
            page.goto(page_file.as_uri())
            _, top, _, bottom = box_of(page, "plot")
            assert bottom - top > 80, (width, bottom - top)
            assert is_within(
                box_of(page, ".ddviz-learn-draws .ddviz-learn-buttons button"),
                box_of(page, ".ddviz-learn-piece"),
            )
            draws = page.locator(".ddviz-learn-draws button").all_text_contents()
            assert len(set(draws)) == len(draws)
