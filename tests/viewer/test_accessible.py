"""For readers without a pointer, without colours, without motion: what the tree says, what keys reach, what signs there are."""

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
