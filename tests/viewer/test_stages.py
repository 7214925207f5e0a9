"""The five stages, why a node was taken or not, and what lights up together, in a real chromium."""

import dataclasses

import msgspec
import pytest

from ddviz.viewer import export_html, step_view
from tests.browser import wait_until, watched_page
from tests.synthetic import Setup, make_trace
from tests.viewer.fixtures import write_trace
from tests.viewer.test_browser import mount, open_page, settle

pytestmark = pytest.mark.browser

STAGES = ["draft", "build", "compile", "verify", "commit"]


def show(page, stage, name="ddviz.view", **address):
    """Go to an address and wait until it is drawn."""
    change = {"stage": stage, **address}
    page.evaluate(f"(change) => {name}.update(change)", change)
    if "step" in address:
        wait_until(page, f"{name}.state().step === {address['step']}")
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")


def stage(page):
    return page.evaluate("ddviz.view.state().stage")


def pane(page):
    return page.locator(".ddviz-stage-pane")


def lit(page, selector, mark="lit"):
    return page.locator(f"{selector}.ddviz-{mark}:visible")


class OneStep:
    """A sequence of steps of which one is looked at."""

    def __init__(self, i, step):
        self.i, self.step = i, step

    def __len__(self):
        return self.i + 1

    def __getitem__(self, _):
        return self.step


def planted(trace, i, **changes):
    """The view of a step with some of its parts exchanged, as if the engine had written them."""
    step = msgspec.structs.replace(trace.steps[i], **changes)
    return step_view(dataclasses.replace(trace, steps=OneStep(i, step)), i)


def mount_step(page, trace, view):
    """The trace, with this view in the place of its step."""
    mount(page, trace, live=False)
    wait_until(page, "view.state().drawMs !== null")
    page.evaluate(
        """(data) => view.update({ source: { poll: stub.poll,
             step: async (i) => (i === data.i ? data : stub.step(i)) } })""",
        view,
    )
    wait_until(page, "view.state().drawMs !== null")


# Walking the stages -------------------------------------------------------------------------------


def test_comma_and_point_walk_from_the_overview_to_the_commit_and_back(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        assert stage(page) is None
        assert pane(page).is_hidden()
        walked = []
        for _ in range(6):
            page.keyboard.press(".")
            walked.append(stage(page))
        assert walked == [*STAGES, "commit"]
        for _ in range(6):
            page.keyboard.press(",")
        assert stage(page) is None
        assert pane(page).is_hidden()


def test_the_bar_chooses_a_stage_and_says_which_is_shown(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        bar = page.get_by_role("navigation", name="Stages of the step")
        bar.get_by_role("button", name="Stage 4 of 5: verify").click()
        assert stage(page) == "verify"
        assert bar.locator("[aria-current=step]").get_attribute("aria-label") == "Stage 4 of 5: verify"
        assert "ms" in bar.locator("[aria-current=step]").inner_text()
        bar.get_by_role("button", name="Overview").click()
        assert stage(page) is None


def test_a_stage_can_be_begun_with_and_stays_while_steps_go_by(browser, traces):
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, traces["sampled"], live=False)
        page.evaluate(
            """() => { view.destroy(); view = ddviz.mount(document.querySelector("main"), stub,
                 { step: 2, stage: "commit" }); }"""
        )
        wait_until(page, "view.state().drawMs !== null")
        assert page.evaluate("view.state().stage") == "commit"
        page.evaluate("view.focus()")
        page.keyboard.press("ArrowRight")
        settle(page, 3, "view")
        after = step_view(traces["sampled"], 3)
        assert f"position {after['prefix_len'] + after['accept_len']}" in pane(page).inner_text()


@pytest.mark.parametrize("width", [1920, 1280, 940, 420])
@pytest.mark.parametrize("name", STAGES)
def test_every_stage_fits_the_page(browser, pages, name, width):
    with watched_page(browser, width=width, height=900) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, name)
        box = pane(page).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1
        assert box["height"] >= 150
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# Draft --------------------------------------------------------------------------------------------


def test_the_draft_table_holds_every_candidate_and_marks_the_trees(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    draft = view["draft"]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "draft")
        rows = page.locator(".ddviz-draft tbody tr")
        assert rows.count() == len(draft["ids"]) == 15
        cells = rows.nth(1).locator("td")
        assert cells.count() == len(draft["ids"][1]) == 16
        node = next(node for node in view["nodes"] if node["depth"] == 2)
        cell = cells.nth(node["rank"])
        assert cell.locator("bdi").get_attribute("title") == node["label"]
        assert str(node["i"]) in cell.get_attribute("data-node").split()
        in_tree = page.locator(".ddviz-draft td.ddviz-in-tree")
        assert in_tree.count() == len({(n["depth"], n["rank"]) for n in view["nodes"][1:]})
        assert rows.nth(0).locator("td.ddviz-beyond").count() == 12  # topk_cap is 4


# Build --------------------------------------------------------------------------------------------


def test_the_search_is_walked_pop_by_pop(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    ghosts, offered = "g.ddviz-node.ddviz-ghost:visible", "g.ddviz-node.ddviz-offered"
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "build")
        assert page.locator(".ddviz-popped tbody tr").count() == len(view["nodes"])
        assert page.locator(ghosts).count() == 1  # the bonus
        for _ in range(13):
            page.keyboard.press("<")
        settle(page, 0)
        assert pane(page).locator(".ddviz-walk").inner_text().startswith("pop 3 of 16")
        assert page.locator(".ddviz-popped tbody tr").count() == 4
        assert page.locator(ghosts).count() + page.locator(offered).count() == 1 + 13
        assert page.locator(offered + '[data-node="4"]').count() == 1
        assert page.locator(".ddviz-pop-next").get_attribute("data-node") == "4"
        assert page.locator(".ddviz-pop-next").inner_text().startswith("▸ next")
        score = page.locator('.ddviz-popped tr[data-node="3"] td').nth(4)
        assert float(score.get_attribute("title")) == pytest.approx(view["nodes"][3]["score"], rel=1e-4)
        page.keyboard.press(">")
        settle(page, 0)
        assert page.locator(".ddviz-pop-now").get_attribute("data-node") == "4"
        slider = page.get_by_role("slider", name="pop of the stage")
        slider.focus()
        page.keyboard.press("Home")
        settle(page, 0)
        assert page.locator(".ddviz-popped tbody tr").count() == 1
        assert "its first child" in pane(page).inner_text()
        page.evaluate("ddviz.view.focus()")
        page.keyboard.press("ArrowRight")  # another step begins at its end
        settle(page, 1)
        assert pane(page).locator(".ddviz-walk").inner_text().startswith("pop 16 of 16")


def test_a_planted_score_is_red_in_the_build_stage(browser, traces):
    trace = traces["sampled"]
    tree = trace.steps[0].tree
    scores = [score - 0.125 if i == 5 else score for i, score in enumerate(tree.scores)]
    view = planted(trace, 0, tree=msgspec.structs.replace(tree, scores=scores))
    with watched_page(browser) as watched:
        page = watched.page
        mount_step(page, trace, view)
        show(page, "build", "view")
        row = page.locator(".ddviz-popped tr.ddviz-wrong-row")
        assert [row.count(), row.get_attribute("data-node")] == [1, "5"]
        assert row.locator("th").inner_text() == "≠ 5"
        assert "node 5 has score" in pane(page).locator("> .ddviz-wrong").inner_text()
        assert is_red(page, row.locator("td").nth(5))
        assert (
            page.get_by_role("button", name="Stage 2 of 5: build").locator(".ddviz-wrong-sign").is_visible()
        )


def is_red(page, locator):
    red, green, blue = locator.evaluate(
        "(e) => getComputedStyle(e).color.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    return red > 150 and green < 130 and blue < 140


# Compile ------------------------------------------------------------------------------------------


def test_the_arrays_stand_side_by_side_local_and_flat_and_the_links_are_arrows(browser):
    trace = make_trace(Setup(seed=3, temperature=1.0, batch_size=3, row=2, padding=2, noise=0.5))
    view = step_view(trace, 0)
    n, width = view["n"], view["batch"]["q_len"]
    with watched_page(browser) as watched:
        page = watched.page
        mount(page, trace, live=False)
        wait_until(page, "view.state().drawMs !== null")
        show(page, "compile", "view")
        rows = page.locator(".ddviz-arrays tbody tr")
        read = lambda k: rows.nth(k).locator("td").all_inner_texts()  # noqa: E731
        assert read(0) == [str(i) for i in range(width)]
        assert read(1) == [str(2 * width + i) for i in range(width)]
        for k, name in ((2, "next_token"), (3, "next_sibling"), (4, "positions"), (5, "slots")):
            assert read(k) == [str(value) for value in view["arrays"][name]]
        assert page.locator(".ddviz-arrays thead .ddviz-pad").count() == width - n == 2
        links = sum(node["next_token"] >= 0 for node in view["nodes"])
        assert page.locator(".ddviz-edge-child:visible").count() == links
        siblings = sum(node["next_sibling"] >= 0 for node in view["nodes"])
        assert page.locator(".ddviz-edge-sibling:visible").count() == siblings
        assert page.locator(".ddviz-wrong-cell").count() == 0
        show(page, "verify", "view")
        assert page.locator(".ddviz-edge-child:visible").count() == 0


def test_a_wrong_link_position_and_mask_bit_are_red(browser, traces):
    trace = traces["sampled"]
    step = trace.steps[0]
    links = list(step.retrieve.next_sibling)
    cut = next(i for i, link in enumerate(links) if link > 0)
    links[cut] = -1
    mask = bytearray(step.mask)
    mask[0] ^= 0b10  # the root sees node 1
    view = planted(
        trace,
        0,
        retrieve=msgspec.structs.replace(step.retrieve, next_sibling=links),
        positions=[p + (i == 3) for i, p in enumerate(step.positions)],
        mask=bytes(mask),
    )
    with watched_page(browser) as watched:
        page = watched.page
        mount_step(page, trace, view)
        show(page, "compile", "view")
        wrong = page.locator(".ddviz-arrays td.ddviz-wrong-cell")
        assert [cell.get_attribute("data-node") for cell in wrong.all()] == [str(cut), "3"]
        assert all("≠" in text for text in wrong.all_inner_texts())
        assert is_red(page, wrong.first)
        said = pane(page).locator("> .ddviz-wrong").inner_text()
        assert f"next_sibling[{cut}] is -1" in said
        assert "1 bit of the mask" in said


# Verify -------------------------------------------------------------------------------------------


def test_the_target_stands_beside_the_drafter_raw_and_filtered(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "verify", node=0)
        assert page.locator(".ddviz-verify tbody tr").count() == len(view["nodes"])
        head = page.locator(".ddviz-distribution thead th").all_inner_texts()
        assert head[:4] == ["token", "draft", "raw", "target"]
        first = page.locator(".ddviz-distribution tbody tr").first
        top = view["nodes"][0]["top"][0]
        assert first.locator("bdi").get_attribute("title") == top["label"]
        raw = dict(view["nodes"][0]["raw_top"])[top["id"]]
        numbers = first.locator("td").all_inner_texts()
        assert numbers[1:3] == [f"{raw:.3f}", f"{top['prob']:.3f}"]
        assert "temperature 0.8" in pane(page).inner_text()


def test_a_child_beyond_the_recorded_tokens_has_its_own_probability(browser, pages, traces):
    for view in (step_view(traces["sampled"], i) for i in range(12)):
        for parent in view["nodes"]:
            likely = {token["id"] for token in parent["top"]}
            beyond = [view["nodes"][c] for c in parent["children"] if view["nodes"][c]["id"] not in likely]
            if beyond:
                break
        else:
            continue
        break
    child = beyond[0]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "verify", step=view["i"], node=parent["i"])
        row = page.locator(f'.ddviz-distribution tr[data-node="{child["i"]}"] td')
        shown = [float(text) for text in row.all_inner_texts()[1:3]]
        assert shown == pytest.approx([child["raw_prob"], child["target_prob"]], rel=0.05, abs=0.0005)
        assert all(value > 0 for value in shown)


def test_a_verdict_that_a_link_contradicts_is_said_where_its_row_is_red(browser, traces):
    trace, i = traces["sampled"], 10
    retrieve = trace.steps[i].retrieve
    links = [0 if node == 1 else link for node, link in enumerate(retrieve.next_sibling)]
    view = planted(trace, i, retrieve=msgspec.structs.replace(retrieve, next_sibling=links))
    differs = [node["differs"] for node in view["nodes"] if node["differs"]]
    assert len(differs) == 3 and not any(exam["differs"] for exam in view["exams"])  # 1 is taken for all that
    with watched_page(browser) as watched:
        page = watched.page
        mount_step(page, trace, view)
        show(page, "verify", "view", step=i, node=2)
        pane(page).locator("> .ddviz-wrong").get_by_text(f"Differs: {'; '.join(differs)}.").wait_for()
        assert page.locator(".ddviz-verify .ddviz-wrong-row").count() == 3
        why = page.locator(".ddviz-exam")
        why.get_by_text("engine: unreached").first.wait_for()
        assert "decided the same" not in why.inner_text()


# Commit -------------------------------------------------------------------------------------------


def test_the_commit_walks_the_path_moves_slots_and_ends_with_the_next_root(browser, pages, traces):
    trace = traces["sampled"]
    view = next(
        v for v in (step_view(trace, i) for i in range(12)) if v["path"] != list(range(len(v["path"])))
    )
    last = len(view["path"])
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "commit", step=view["i"])
        moves = [
            m
            for m in zip(view["commit"]["src_slots"], view["commit"]["dst_slots"], strict=True)
            if m[0] != m[1]
        ]
        assert page.locator(".ddviz-move:not(.ddviz-move-stays)").count() == len(moves) > 0
        kept = page.locator(".ddviz-slots").last.locator(".ddviz-slot")
        assert [c.get_attribute("data-node") for c in kept.all()] == [str(node) for node in view["path"]]
        assert f"root of the next step, at position {view['prefix_len'] + last}" in pane(page).inner_text()
        assert page.locator(".ddviz-joining.ddviz-waits").count() == 0
        for _ in range(last):
            page.keyboard.press("<")
        settle(page, view["i"])
        assert page.locator(".ddviz-joining.ddviz-waits").count() == last  # tokens and bonus still wait
        assert page.locator(".ddviz-move").count() == 0
        page.keyboard.press(">")
        settle(page, view["i"])
        assert page.locator(".ddviz-joining.ddviz-waits").count() == last - 1
        assert page.locator("g.ddviz-node.ddviz-accepted:not(.ddviz-ghost):visible").count() == 1


@pytest.mark.parametrize("width", [1280, 1920])
def test_all_rows_that_move_are_in_view_in_a_tree_of_64_nodes(browser, tmp_path, width):
    trace = write_trace(tmp_path / "wide.ddviz", steps=8, budget=64, topk_cap=8, seed=2)
    views = [step_view(trace, i) for i in range(len(trace.steps))]
    view = max(views, key=lambda view: view["path"][-1])
    assert view["path"][-1] > 20, "a row comes from beyond what the pane would show of all slots"
    with watched_page(browser, width=width, height=800) as watched:
        page = watched.page
        open_page(page, export_html(trace, tmp_path / "wide.html"))
        show(page, "commit", step=view["i"])
        strip = page.locator(".ddviz-slot-strip").bounding_box()
        moved = page.locator(".ddviz-move")
        assert moved.count() == len(view["path"])
        for row, node in zip(moved.all(), view["path"], strict=True):
            box = row.bounding_box()
            assert strip["x"] <= box["x"] and box["x"] + box["width"] <= strip["x"] + strip["width"]
            source = page.locator(f".ddviz-slots >> nth=0 >> .ddviz-slot[data-node='{node}']").bounding_box()
            assert box["x"] - 1 <= source["x"] + source["width"] / 2 <= box["x"] + box["width"] + 1
        cells = page.locator(".ddviz-slots").first.locator(".ddviz-slot").all()
        nodes = [int(node) for cell in cells for node in cell.get_attribute("data-node").split()]
        assert nodes == list(range(len(view["nodes"]))), "every slot stands in a cell"
        free = page.locator(".ddviz-slot-free").first
        free.hover()
        lit = page.locator("g.ddviz-node.ddviz-lit:visible")
        assert lit.count() == len(free.get_attribute("data-node").split())


def test_a_row_of_kv_from_the_wrong_slot_is_red(browser, traces):
    trace = traces["sampled"]
    commit = trace.steps[0].commit
    wrong = msgspec.structs.replace(
        commit,
        src_slots=[commit.src_slots[0] + 2, *commit.src_slots[1:]],
        committed_len=commit.committed_len + 1,
    )
    with watched_page(browser) as watched:
        page = watched.page
        mount_step(page, trace, planted(trace, 0, commit=wrong))
        show(page, "commit", "view")
        said = pane(page).locator("> .ddviz-wrong")
        assert "row 0 is taken from slot" in said.inner_text()
        assert "committed length is" in said.inner_text()
        assert is_red(page, said)


# What is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["AR", "DFLASH", "light"])
def test_what_is_not_recorded_is_said_calmly(browser, algorithm):
    trace = make_trace(Setup(seed=2, algorithm="DDTREE" if algorithm == "light" else algorithm))
    if algorithm == "light":
        parts = ("draft", "retrieve", "positions", "slots", "mask", "target", "sampling", "commit")
        views = [planted(trace, i, **dict.fromkeys(parts)) for i in range(2)]
    else:
        views = [step_view(trace, i) for i in range(2)]
    with watched_page(browser) as watched:
        page = watched.page
        mount_step(page, trace, views[0])
        for name in STAGES:
            show(page, name, "view", node=0)
            assert pane(page).locator("> .ddviz-wrong").is_hidden()
            assert len(pane(page).locator(".ddviz-stage-body").inner_text()) > 20
        if algorithm == "light":
            for name in STAGES:
                show(page, name, "view")
                assert "not recorded" in pane(page).inner_text()
        else:
            show(page, "build", "view")
            said = pane(page).inner_text()
            assert ("no tree is built" if algorithm == "AR" else "builds no tree") in said


# Why ----------------------------------------------------------------------------------------------


def test_why_shows_coin_running_sums_and_that_the_engine_agrees(browser, pages, traces):
    views = [step_view(traces["sampled"], i) for i in range(12)]
    view, node = next(
        (v, n) for v in views for n in v["nodes"] if n["status"] == "rejected" and n["target_prob"] > 0.001
    )
    exam = next(e for e in view["exams"] if e["parent"] == node["parent"])
    child = next(c for c in exam["children"] if c["node"] == node["i"])
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, None, step=view["i"], node=node["i"])
        why = page.locator(".ddviz-exam")
        assert f"Coin of node {node['parent']}" in why.inner_text()
        rows = why.locator("tbody tr")
        assert [row.get_attribute("data-node") for row in rows.all()] == [
            str(c["node"]) for c in exam["children"]
        ]
        cells = why.locator(f'tr[data-node="{node["i"]}"] td').all_inner_texts()
        assert cells[1:] == [f"{child['prob']:.3f}", f"{child['running']:.3f}", "> rejected"]
        assert "the engine decided the same" in why.inner_text()
        assert why.get_by_role("img", name="Coin").is_visible()
        assert page.locator(".ddviz-detail-pane .ddviz-wrong").count() == 0


def test_why_without_coins_shows_probabilities_and_sums_and_the_engines_verdict(browser, traces, tmp_path):
    trace = traces["sampled"]
    views = [step_view(trace, i) for i in range(12)]
    view, exam = next((v, e) for v in views for e in v["exams"] if len(e["children"]) > 1)
    page_path = export_html(trace, tmp_path / "light.html", "light")
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, page_path)
        show(page, None, step=view["i"], node=exam["children"][0]["node"])
        why = page.locator(".ddviz-exam")
        assert f"The coin of node {exam['parent']} is not recorded" in why.inner_text()
        for child in exam["children"]:
            cells = why.locator(f'tr[data-node="{child["node"]}"] td').all_inner_texts()
            assert [float(cell) for cell in cells[1:3]] == pytest.approx(
                [child["prob"], child["running"]], rel=0.05, abs=0.001
            )
            assert cells[3] == child["engine"]


def test_why_a_node_was_never_examined_leads_to_where_its_branch_was_left(browser, pages, traces):
    views = [step_view(traces["sampled"], i) for i in range(12)]
    view, node = next(
        (v, n) for v in views for n in v["nodes"][1:] if n["depth"] > 1 and n["parent"] not in v["path"]
    )
    above = node["parent"]
    while view["nodes"][above]["parent"] not in view["path"]:
        above = view["nodes"][above]["parent"]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, None, step=view["i"], node=node["i"])
        why = page.locator(".ddviz-exam")
        assert f"The path left its branch at node {view['nodes'][above]['parent']}." in why.inner_text()
        assert why.locator(f'tbody tr[data-node="{above}"]').count() == 1


def test_why_the_bonus_shows_the_residual_and_the_final_coin(browser, pages, traces):
    views = [step_view(traces["sampled"], i) for i in range(12)]
    view = next(v for v in views if v["bonus"]["exam"]["refused"])
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, None, step=view["i"], node="bonus")
        why = page.locator(".ddviz-exam")
        assert f"recorded {view['bonus']['residual_sum']:.4g}"[:15] in why.inner_text()
        assert why.get_by_role("img", name="The final coin").is_visible()
        assert "the engine decided the same" in why.inner_text()


def test_why_in_greedy_names_argmax_and_margin(browser, pages, traces):
    views = [step_view(traces["greedy"], i) for i in range(12)]
    view = next(v for v in views if len(v["path"]) > 1)
    node = view["nodes"][view["path"][1]]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["greedy"])
        show(page, None, step=view["i"], node=node["i"])
        said = page.locator(".ddviz-exam").inner_text()
        assert f"argmax after node 0 is {node['label']} (id {node['id']}" in said
        assert "above the second logit" in said


def test_a_decision_that_the_numbers_contradict_is_red(browser, traces):
    trace = traces["sampled"]
    i = next(i for i in range(12) if len(step_view(trace, i)["path"]) > 1)
    sampling = trace.steps[i].sampling
    coins = [0.9999999, *sampling.coins[1:]]
    view = planted(trace, i, sampling=msgspec.structs.replace(sampling, coins=coins))
    taken = view["path"][1]
    with watched_page(browser) as watched:
        page = watched.page
        mount_step(page, trace, view)
        show(page, "verify", "view", step=i, node=taken)
        why = page.locator(".ddviz-exam")
        assert "≠ After node 0 the recorded numbers take" in why.locator(".ddviz-wrong").inner_text()
        assert is_red(page, why.locator(".ddviz-wrong p").first)
        assert "engine: accepted" in why.locator(f'tr[data-node="{taken}"]').inner_text()
        row = page.locator(f'.ddviz-verify tr[data-node="{taken}"]')
        assert row.locator("th").inner_text().startswith("≠ ")
        assert "the engine took node" in pane(page).locator("> .ddviz-wrong").inner_text()


# Cross-highlighting -------------------------------------------------------------------------------


def test_a_hovered_node_lights_up_in_every_array_and_in_the_text(browser, pages, traces):
    views = [step_view(traces["sampled"], i) for i in range(12)]
    view = next(v for v in views if len(v["path"]) > 1)
    node = view["path"][1]
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "compile", step=view["i"])
        page.locator(f'g[data-node="{node}"] .ddviz-shape').hover()
        cells = lit(page, ".ddviz-arrays *")
        assert cells.count() == 7  # name and six arrays
        assert {cell.get_attribute("data-node") for cell in cells.all()} == {str(node)}
        assert lit(page, ".ddviz-t").count() == 1
        assert page.locator(".ddviz-band-lit:visible").count() == 2
        page.mouse.move(5, 5)
        assert page.locator(".ddviz-lit").count() == 0


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("draft", "td.ddviz-in-tree[data-node~='2']"),
        ("build", ".ddviz-popped tr[data-node='2']"),
        ("compile", ".ddviz-arrays tbody tr:nth-child(3) td[data-node='2']"),
        ("verify", ".ddviz-verify tr[data-node='2']"),
        ("commit", ".ddviz-slot[data-node='2']"),
    ],
)
def test_and_back_from_each_stage_to_the_tree(browser, pages, name, selector):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, name)
        page.locator(selector).first.hover()
        assert lit(page, "g.ddviz-node[data-node='2']").count() == 1
        assert page.locator(".ddviz-ring-hover").is_visible() or page.evaluate("ddviz.view.state().node") == 2


def test_the_mask_lights_up_its_node_and_says_whom_it_sees(browser, pages, traces):
    view = step_view(traces["sampled"], 0)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "compile", node=0)
        page.locator("canvas.ddviz-mask").scroll_into_view_if_needed()
        page.locator("canvas.ddviz-mask").hover(position={"x": 36 * 1 + 18, "y": 15 * 2 + 7})
        assert lit(page, "g.ddviz-node").get_attribute("data-node") == "2"
        seen = view["nodes"][2]["parent"] == 1
        said = page.locator(".ddviz-mask-box p").inner_text()
        assert said.startswith("Node 2 sees the committed prefix, 0")
        assert said.endswith(f"Node 1 is {'above it: seen' if seen else 'not above it: not seen'}.")


def test_the_names_of_the_mask_stay_in_view_while_it_is_scrolled(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        show(page, "compile", node=60)
        names = page.locator("canvas.ddviz-mask-names")
        pane = page.locator(".ddviz-stage-body").bounding_box()
        assert page.locator(".ddviz-stage-body").evaluate("(box) => box.scrollLeft") > 300
        assert names.bounding_box()["x"] >= pane["x"] - 1
        names.scroll_into_view_if_needed()
        names.hover(position={"x": 50, "y": 7})
        assert page.locator(".ddviz-mask-box p").inner_text().startswith("Node 0 sees the committed prefix")


def test_stage_tabs_stand_still_while_stages_and_steps_change(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        tabs = page.locator(".ddviz-stagetab")
        where = [tab.bounding_box()["x"] for tab in tabs.all()]
        for _ in range(5):
            page.keyboard.press(".")
            page.keyboard.press("ArrowRight")
            wait_until(page, "ddviz.view.state().drawn === ddviz.view.state().step")
            assert [tab.bounding_box()["x"] for tab in tabs.all()] == pytest.approx(where, abs=0.6)


def test_a_token_of_the_text_lights_up_its_node_and_focus_does_as_well(browser, pages, traces):
    views = [step_view(traces["sampled"], i) for i in range(12)]
    view = next(v for v in views if len(v["path"]) > 1)
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "verify", step=view["i"])
        page.locator(f'.ddviz-chunk[data-step="{view["i"]}"] .ddviz-t').first.hover()
        assert lit(page, "tr").first.get_attribute("data-node") == str(view["path"][1])
        page.mouse.move(5, 5)
        link = page.locator(".ddviz-exam tbody button").last
        link.focus()
        index = link.get_attribute("data-node")
        assert lit(page, f"g.ddviz-node[data-node='{index}']").count() == 1


def test_the_selected_node_stays_marked_everywhere_and_a_click_selects(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["sampled"])
        show(page, "verify")
        page.locator(".ddviz-verify tr[data-node='5'] td").first.click()
        settle(page, 0)
        assert page.evaluate("ddviz.view.state().node") == 5
        assert lit(page, ".ddviz-verify tr", "chosen").get_attribute("data-node") == "5"
        assert "After" in page.locator(".ddviz-in-verify section").last.inner_text()
        show(page, "compile")
        assert lit(page, ".ddviz-arrays td", "chosen").count() == 6


def test_hostile_tokens_are_text_in_every_stage(browser, pages, traces):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["hostile"])
        for name in STAGES:
            for step in range(0, len(traces["hostile"].steps), 5):
                show(page, name, step=step, node=1)
        assert page.locator(".ddviz img, .ddviz script").count() == 0


def test_a_thousand_nodes_pass_through_every_stage(browser, pages):
    with watched_page(browser) as watched:
        page = watched.page
        open_page(page, pages["large"])
        for name in STAGES:
            show(page, name, node=700)
            assert pane(page).locator("> .ddviz-wrong").is_hidden()
        show(page, "compile", node=700)
        assert page.locator(".ddviz-arrays thead [data-node='700']").is_visible()
        assert page.locator(".ddviz-arrays thead th").count() <= 129
