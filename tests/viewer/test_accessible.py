"""For readers without pointer, colours or motion: what the tree says, which signs there are, what rests."""

import pytest

from ddviz.viewer import step_view
from tests.browser import watched_page
from tests.viewer.test_browser import open_page
from tests.viewer.test_fold import item, select

pytestmark = pytest.mark.browser

SAID = ("aria-level", "aria-posinset", "aria-setsize", "aria-expanded", "aria-selected")


def children_of(view, index):
    """As the tree draws them: the bonus hangs below the last node of the path."""
    if index == "bonus":
        return []
    children = list(view["nodes"][index]["children"])
    return [*children, "bonus"] if view["bonus"]["parent"] == index else children


def expected_order(view, index=0, depth=0, siblings=(0,)):
    """(node, attributes) of every tree item, a node before what hangs below it."""
    children = children_of(view, index)
    expanded = "true" if children else None
    place = siblings.index(index) + 1
    yield index, [str(depth + 1), str(place), str(len(siblings)), expanded]
    for child in children:
        yield from expected_order(view, child, depth + 1, children)


def said(element):
    return [element.get_attribute(name) for name in SAID]


def test_tree_items_say_level_place_and_number_in_reading_order(browser, pages, traces):
    view = step_view(traces["sampled"], 3)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        page.evaluate("ddviz.view.update({ step: 3, node: 0 })")
        page.get_by_role("tree", name="Draft tree of step 3").wait_for()
        select(page, 0)
        page.locator("g[role=treeitem]:visible").first.wait_for()
        items = page.locator("g[role=treeitem]:visible").all()
        expected = list(expected_order(view))
        assert [one.get_attribute("data-node") for one in items] == [str(node) for node, _ in expected]
        for one, (node, attributes) in zip(items, expected, strict=True):
            assert said(one) == [*attributes, "true" if node == 0 else "false"], node
        page.keyboard.press("z")
        item(page, 0).and_(page.locator("[aria-expanded=false]")).wait_for()
        assert said(item(page, 0)) == ["1", "1", "1", "false", "true"]
        active = "(e) => e.ariaActiveDescendantElement.dataset.node"
        assert page.get_by_role("tree").evaluate(active) == "0"


def test_a_tree_on_the_canvas_says_of_its_node_what_an_element_would(browser, pages, traces):
    view = step_view(traces["large"], 0)
    expected = dict(expected_order(view))
    leaf = max(range(len(view["nodes"])), key=lambda i: view["nodes"][i]["depth"])
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        spoken = page.locator(".ddviz-canvas + .ddviz-spoken[role=treeitem]")
        for node in (0, 1, 700, leaf, 999, "bonus"):
            select(page, node)
            assert said(spoken) == [*expected[node], "true"], node
            name = "bonus" if node == "bonus" else f"node {node}"
            label = (view["bonus"] if node == "bonus" else view["nodes"][node])["label"]
            assert spoken.get_attribute("aria-label").startswith(f"{name}, token {label}, ")
            assert page.get_by_role("tree").evaluate(
                "(e) => e.ariaActiveDescendantElement.classList.contains('ddviz-spoken')"
            )


MOVES = """() => {
  const found = [];
  const look = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.shadowRoot) look(element.shadowRoot);
      const { transitionDuration, animationName } = getComputedStyle(element);
      if (/[1-9]/.test(transitionDuration) || animationName !== "none") found.push(element.className);
    }
  };
  look(document);
  return found;
}"""


def test_nothing_moves_for_who_asks_for_less_motion(browser, pages):
    """In the stage that moves otherwise; without the wish it does move, so that the test can fail."""
    for motion, moves in (("no-preference", True), ("reduce", False)):
        with watched_page(browser, reduced_motion=motion) as watched:
            page = watched.page
            page.goto(f"{pages['sampled'].as_uri()}#stage=commit")
            page.locator(".ddviz-joining").first.wait_for()
            for key in ("<", "<", ">"):
                page.keyboard.press(key)
            assert bool(page.evaluate(MOVES)) == moves
            assert (page.evaluate("document.getAnimations().length") == 0) or moves


def test_colour_is_never_the_only_sign_of_a_status(browser, pages, traces):
    """Status by status: another outline, a sign or dashes; and the legend says which is which in words."""
    steps = range(len(traces["sampled"].steps))
    with watched_page(browser, forced_colors="active") as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        looks = {}
        for step in steps:
            page.evaluate(f"ddviz.view.update({{ step: {step} }})")
            page.get_by_role(
                "tree", name=f"Draft tree of step {traces['sampled'].steps[step].index}"
            ).wait_for()
            for status in ("root", "accepted", "rejected", "unreached", "bonus"):
                node = page.locator(f"g[role=treeitem].ddviz-{status}:visible").first
                if not node.count():
                    continue
                shape = node.locator(".ddviz-shape")
                corners = "".join(filter(str.isalpha, shape.get_attribute("d")))
                dashes = shape.evaluate("(e) => getComputedStyle(e).strokeDasharray")
                label = node.locator(".ddviz-label").text_content()
                looks[status] = (corners, dashes, label[0] if label[0] in "◆✓✗+" else "")
        assert len(looks) == 5 and len(set(looks.values())) == 5, looks
        legend = page.locator(".ddviz-legend").inner_text()
        assert all(status in legend for status in looks)
