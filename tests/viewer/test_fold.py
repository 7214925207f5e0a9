"""Folding a subtree: by key, by click, kept by the address, and said; with elements and on the canvas."""

import pytest

from ddviz.viewer import step_view
from tests.browser import wait_until, watched_page
from tests.viewer.test_browser import open_page, settle

pytestmark = pytest.mark.browser


def below(view, node):
    """All nodes under one."""
    found = []
    for child in view["nodes"][node]["children"]:
        found += [child, *below(view, child)]
    return found


def inner(view, path=True):
    """A node that is on the accepted path or not, with at least two nodes below it."""
    nodes = [n["i"] for n in view["nodes"][1:] if len(below(view, n["i"])) >= 2]
    return next(i for i in nodes if (i in view["path"]) == path)


def shown(page):
    """Nodes that have an element."""
    items = page.locator("g[role=treeitem]:visible").evaluate_all("all => all.map((g) => g.dataset.node)")
    return {int(name) for name in items if name != "bonus"}


def select(page, node):
    page.evaluate("(node) => ddviz.view.update({ node })", node)
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")


def item(page, node):
    return page.locator(f"g[role=treeitem][data-node='{node}']")


@pytest.mark.parametrize("on_path", [True, False])
def test_a_key_folds_and_unfolds_what_hangs_below_the_node(browser, pages, traces, on_path):
    view = step_view(traces["greedy"], 0)
    node = inner(view, on_path)
    hidden = set(below(view, node))
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["greedy"])
        everything = shown(page)
        assert everything == set(range(len(view["nodes"])))
        select(page, node)
        assert item(page, node).get_attribute("aria-expanded") == "true"
        page.keyboard.press("z")
        wait_until(page, "location.hash.includes('folded=')")
        assert shown(page) == everything - hidden
        assert item(page, node).get_attribute("aria-expanded") == "false"
        says = f"folded, hides {len(hidden)} nodes" + (" and the bonus" if on_path else "")
        assert item(page, node).get_attribute("aria-label").endswith(says)
        assert item(page, node).locator(".ddviz-note").text_content() == f"▸ {len(hidden)}"
        assert (page.locator("[data-node=bonus][role=treeitem]:visible").count() == 0) == on_path
        page.keyboard.press("z")
        page.wait_for_timeout(100)
        assert shown(page) == everything


def test_a_leaf_says_nothing_of_folding_and_does_not_fold(browser, pages, traces):
    view = step_view(traces["greedy"], 0)
    with_bonus = view["bonus"]["parent"]
    leaf = next(n["i"] for n in view["nodes"] if not n["children"] and n["i"] != with_bonus)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["greedy"])
        select(page, leaf)
        page.keyboard.press("z")
        page.wait_for_timeout(100)
        assert item(page, leaf).get_attribute("aria-expanded") is None
        assert shown(page) == set(range(len(view["nodes"])))


def test_a_double_click_folds_a_click_on_the_count_and_the_child_key_unfold(browser, pages, traces):
    view = step_view(traces["greedy"], 0)
    node, everything = inner(view), set(range(len(view["nodes"])))
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["greedy"])
        item(page, node).locator(".ddviz-shape").dblclick()
        item(page, node).and_(page.locator("[aria-expanded=false]")).wait_for()
        assert shown(page) == everything - set(below(view, node))
        box = item(page, node).locator(".ddviz-note").bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        item(page, node).and_(page.locator("[aria-expanded=true]")).wait_for()
        page.get_by_role("button", name="Fold or unfold").click()
        item(page, node).and_(page.locator("[aria-expanded=false]")).wait_for()
        page.keyboard.press("]")
        item(page, node).and_(page.locator("[aria-expanded=true]")).wait_for()
        assert shown(page) == everything


def test_the_link_brings_back_what_is_folded_in_its_step_alone(browser, pages, traces):
    view = step_view(traces["greedy"], 2)
    node = inner(view, path=False)
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(f"{pages['greedy'].as_uri()}#step=2&node={node}&folded={node}")
        wait_until(page, "ddviz.view.state().drawMs !== null")
        settle(page, 2)
        assert shown(page) == set(range(len(view["nodes"]))) - set(below(view, node))
        page.keyboard.press("ArrowRight")
        settle(page, 3)
        page.wait_for_timeout(300)
        assert shown(page) == set(range(len(step_view(traces["greedy"], 3)["nodes"])))
        wait_until(page, "location.hash.includes('step=3') && !location.hash.includes('folded')")


def test_a_hidden_node_that_is_chosen_elsewhere_unfolds_what_hides_it(browser, pages, traces):
    view = step_view(traces["greedy"], 0)
    node = inner(view)
    child = view["nodes"][node]["children"][0]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["greedy"])
        select(page, node)
        page.keyboard.press("z")
        item(page, node).and_(page.locator("[aria-expanded=false]")).wait_for()
        select(page, child)
        assert child in shown(page)
        assert item(page, child).get_attribute("aria-selected") == "true"


def test_a_tree_on_the_canvas_folds_and_says_so(browser, pages, traces):
    view = step_view(traces["large"], 0)
    node = max(range(1, len(view["nodes"])), key=lambda i: len(below(view, i)))
    hidden = len(below(view, node))
    assert hidden > 100
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        select(page, node)
        spoken = page.locator(".ddviz-spoken")
        assert spoken.get_attribute("aria-expanded") == "true"
        page.keyboard.press("z")
        wait_until(page, "location.hash.includes('folded=')")
        assert spoken.get_attribute("aria-expanded") == "false"
        assert f"folded, hides {hidden} nodes" in spoken.get_attribute("aria-label")
        page.keyboard.press("Shift+z")
        page.wait_for_timeout(100)
        assert spoken.get_attribute("aria-expanded") == "true"
