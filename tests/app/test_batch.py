"""The batch view: all rows of a forward, from the traces of a folder; a press opens a neighbour's trace."""

import json

import msgspec
import pytest

from ddviz.app.batch import MISSING, batch_function
from ddviz.trace import load
from ddviz.viewer import export_html
from tests.app.app_page import AppPage, served_app
from tests.batches import write_batch
from tests.browser import wait_until, watched_page
from tests.synthetic import Setup, write_trace


@pytest.fixture
def batch(session, folders):
    paths = write_batch(folders[1])
    write_trace(folders[1] / "other.ddviz", Setup(seed=3))  # another server's, alone in its batch
    ids = {entry.path.stem: entry.id for entry in session.registry.saved_runs()}
    return {row: (ids[path.stem], load(path)) for row, path in paths.items()}


def test_all_rows_of_a_batch_come_together(session, batch):
    trace_id, trace = batch[1]
    answer = batch_function(session)({"trace": trace_id, "index": 2})
    json.loads(msgspec.json.encode(answer))
    assert (answer["id"], answer["size"], answer["own"]) == (trace.steps[2].batch.id, 4, 1)
    for row, (_, other) in batch.items():
        step, shown = other.steps[2], answer["rows"][row]
        assert (
            shown["flat"]
            == step.retrieve.index
            == [row * step.batch.q_len + i for i in range(step.batch.q_len)]
        )
        assert (shown["slot"], shown["accept_index"]) == (step.slots, step.accept.index)
        assert shown.get("trace") == (None if row == 1 else f"run:request-{'abcd'[row]}")
    assert answer["rows"][2] == {"row": 2, "missing": MISSING}
    assert answer["clashes"] == []


def test_a_row_that_two_traces_claim_is_the_nearer_one_and_said(session, batch, folders):
    (folders[1] / "copy.ddviz").write_bytes((folders[1] / "request-d.ddviz").read_bytes())
    answer = batch_function(session)({"trace": batch[0][0], "index": 1})
    assert answer["notes"] == ["row 3 is claimed by 2 traces; the one begun nearest in time is shown"]
    assert answer["rows"][3]["flat"] == batch[3][1].steps[1].retrieve.index


@pytest.mark.parametrize("index", [None, -1, "2", 10**6])
def test_a_wrong_request_is_a_sentence(session, batch, index):
    assert list(batch_function(session)({"trace": batch[0][0], "index": index})) == ["error"]
    assert list(batch_function(session)({"trace": "gone", "index": 0})) == ["error"]


# In the browser -------------------------------------------------------------------------------------


@pytest.mark.browser
def test_a_press_in_the_batch_opens_the_neighbours_trace_at_that_step(browser, tmp_path):
    runs, samples = tmp_path / "runs", tmp_path / "samples"
    runs.mkdir(), samples.mkdir()
    width = load(write_batch(runs)[0]).steps[2].batch.q_len
    with served_app(None, runs, samples) as url, watched_page(browser) as watched:
        app = AppPage(watched, f"{url}#trace=run:request-b&step=2")
        page = app.page
        page.locator(".ddviz-counter b").wait_for()
        app.wait_for_tree()
        page.locator(".ddviz:visible").focus()
        page.keyboard.press("b")
        blocks = page.locator(".ddviz-owner-block:visible")
        blocks.nth(3).wait_for()
        heads = blocks.locator(".ddviz-owner-head").all_inner_texts()
        assert [head.split()[0] for head in heads] == ["B", "A", "C", "D"]
        assert MISSING in heads[2]
        strip = page.get_by_role("group", name="Flat indices by owner")
        assert strip.inner_text().split() == [
            word
            for row, name in enumerate("ABCD")
            for word in (name, f"{row * width}–{(row + 1) * width - 1}")
        ]
        wait_until(page, "location.hash.includes('panels=batch')")
        strip.get_by_role("button", name="Open D: row 3").click()
        wait_until(page, "location.hash.includes('trace=run:request-d')")
        page.locator(".ddviz-owner-block:visible").nth(3).wait_for()
        assert page.locator(".ddviz-name:visible").first.inner_text() == "request-d"
        assert page.locator(".ddviz-counter b:visible").inner_text() == "2"
        assert page.locator(".ddviz-owner-block:visible .ddviz-tag").inner_text() == "this trace"
        app.assert_quiet()


@pytest.mark.browser
def test_a_page_of_one_trace_shows_its_own_row_and_names_the_others(browser, tmp_path):
    path = export_html(load(write_batch(tmp_path)[1]), tmp_path / "b.html")
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(f"{path.as_uri()}#step=1&panels=batch")
        blocks = page.locator(".ddviz-owner-block:visible")
        blocks.nth(3).wait_for()
        assert (
            blocks.first.locator("td.ddviz-flat-cell").first.inner_text()
            == f"B{load(tmp_path / 'request-b.ddviz').steps[1].batch.q_len}"
        )
        assert blocks.filter(has_text="this page holds one trace").count() == 3
        assert page.get_by_role("button", name="Open").count() == 0
