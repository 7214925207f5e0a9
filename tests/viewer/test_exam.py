"""Decisions taken again from the recorded numbers: silent on right traces, loud where one was changed."""

import json
from dataclasses import replace

import msgspec
import pytest

from ddviz.trace.schema import Accept, FilteredRows
from ddviz.viewer import step_view
from tests.synthetic import Setup, make_trace
from tests.viewer.fixtures import write_trace
from tests.viewer.test_view import TREE, sampled_step, small_step, trace_of

SETUPS = [
    Setup(seed=1),
    Setup(seed=2, temperature=0.7),
    Setup(seed=3, temperature=1.0, top_k=6, top_p=0.9, batch_size=3, row=1, padding=4),
    Setup(seed=4, temperature=1.0, threshold_single=0.3, threshold_acc=0.6),
    Setup(seed=5, temperature=1.0, algorithm="DFLASH"),
    Setup(seed=6, algorithm="AR"),
    Setup(seed=7, temperature=1.2, noise=0.1, budget=20, block_size=3),  # paths end at the depth limit
]


def differs(view):
    return [
        *(exam["differs"] for exam in view["exams"] if exam["differs"]),
        *view["bonus"]["exam"]["differs"],
        *(node["differs"] for node in view["nodes"] if node["differs"]),
    ]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"seed{setup.seed}")
def test_right_traces_are_decided_the_same(setup):
    trace = make_trace(setup)
    decided = 0
    for i in range(len(trace.steps)):
        view = step_view(trace, i)
        json.dumps(view, allow_nan=False)
        assert differs(view) == []
        decided += sum(exam["known"] for exam in view["exams"])
        assert [exam["parent"] for exam in view["exams"]] == view["path"]
    assert decided >= len(trace.steps) / 2


def test_the_exam_of_a_drawn_tree(tmp_path):
    """Coin 0.4 of the root: 0.3 is not enough, 0.3 + 0.2 is; coin 0.9 of node 2 refuses both its children."""
    first, second = step_view(trace_of(tmp_path / "t.ddviz", sampled_step()), 0)["exams"]
    assert (first["parent"], first["coin"], first["takes"], first["took"]) == (0, 0.4, 2, 2)
    rows = [(c["node"], c["verdict"], c["by_coin"], round(c["running"], 6)) for c in first["children"]]
    assert rows == [(1, "rejected", False, 0.3), (2, "accepted", True, 0.5)]
    assert (second["parent"], second["takes"], second["took"], second["known"]) == (2, None, None, True)


def test_a_coin_that_takes_another_child_is_a_difference_at_both(tmp_path):
    view = step_view(trace_of(tmp_path / "t.ddviz", sampled_step(coins=[0.2] + [0.9] * 4)), 0)
    assert view["exams"][0]["differs"].endswith("take node 1, the engine took node 2")
    assert (
        view["nodes"][1]["differs"]
        == "by the recorded numbers node 1 is accepted, the engine has it rejected"
    )
    assert (
        view["nodes"][2]["differs"]
        == "by the recorded numbers node 2 is unreached, the engine has it accepted"
    )
    assert view["nodes"][3]["differs"] is None


def test_a_path_that_stops_too_early_is_a_difference(tmp_path):
    accept = Accept(index=[10], num_accepted=0, predicts=[5], bonus=5, kernel="sampled")
    view = step_view(trace_of(tmp_path / "t.ddviz", sampled_step(accept=accept, emitted=[5])), 0)
    assert view["exams"][0]["differs"].endswith("take node 2, the engine took none of its children")


def test_a_threshold_accepts_where_the_coin_does_not(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", sampled_step(coins=[0.6] * 5), threshold_single=0.2)
    child = step_view(trace, 0)["exams"][0]["children"][0]
    assert (child["verdict"], child["by_coin"], child["by_single"]) == ("accepted", False, True)


def test_the_residual_and_the_draw_are_checked(tmp_path):
    bonus = step_view(trace_of(tmp_path / "t.ddviz", sampled_step()), 0)["bonus"]["exam"]
    assert (bonus["refused"], bonus["expected"]) == ([3, 4], pytest.approx(0.5))
    assert (bonus["drawn"], bonus["low"], bonus["high"], bonus["differs"]) == (0.125, 0.1, 0.6, [])
    step = sampled_step()
    step.sampling.residual_sum = 0.9
    step.sampling.final_coin = 0.99
    said = " ".join(step_view(trace_of(tmp_path / "u.ddviz", step), 0)["bonus"]["exam"]["differs"])
    assert "1 less the refused probabilities is 0.5" in said
    assert "is not in the bonus's part" in said


def test_a_refused_token_cannot_be_the_bonus(tmp_path):
    accept = Accept(index=[10, 12], num_accepted=1, predicts=[2, 3], bonus=3, kernel="sampled")
    view = step_view(trace_of(tmp_path / "t.ddviz", sampled_step(accept=accept, emitted=[2, 3])), 0)
    assert "the token of node 3" in view["bonus"]["exam"]["differs"][0]


def test_greedy_exams_hold_argmax_and_margin(tmp_path):
    target = sampled_step().target
    target.raw.argmax = [2, 0, 5, 0, 0]
    exams = step_view(trace_of(tmp_path / "t.ddviz", small_step(target=target)), 0)["exams"]
    assert exams[0]["argmax"] == {"id": 2, "label": "c"}
    assert (exams[0]["margin"], exams[0]["takes"]) == (0.5, 2)
    assert [exam["differs"] for exam in exams] == [None, None]
    target.raw.argmax = [1, 0, 3, 0, 0]
    view = step_view(trace_of(tmp_path / "u.ddviz", small_step(target=target)), 0)
    assert [exam["differs"].split("take ")[1] for exam in view["exams"]] == [
        "node 1, the engine took node 2",
        "node 3, the engine took none of its children",
    ]
    assert view["bonus"]["exam"]["differs"] == ["the target's argmax after node 2 is id 3, the bonus is id 5"]


def test_without_numbers_nothing_is_claimed(tmp_path):
    for step in (
        small_step(),
        small_step(tree=TREE, accept=sampled_step().accept),
        sampled_step(coins=[None] * 5),
    ):
        view = step_view(trace_of(tmp_path / "t.ddviz", step), 0)
        assert not any(exam["known"] for exam in view["exams"])
        assert not any(exam["differs"] for exam in view["exams"])


def test_a_step_view_holds_the_draft_and_the_arrays_as_recorded(tmp_path):
    trace = make_trace(Setup(seed=3, temperature=1.0, batch_size=2, row=1, padding=3))
    step, view = trace.steps[0], step_view(trace, 0)
    assert view["draft"]["ids"] == step.draft.top_ids
    assert view["arrays"]["index"] == step.retrieve.index
    assert len(view["arrays"]["next_token"]) == len(step.tree.tokens) + 3
    assert all(view["labels"][str(token)] for row in step.draft.top_ids for token in row)
    filtered = write_trace(tmp_path / "f.ddviz", steps=1)
    tops = [node["raw_top"] for node in step_view(filtered, 0)["nodes"]]
    assert [[token for token, _ in top] for top in tops] == filtered.steps[0].target.raw.top_ids
    bare = msgspec.structs.replace(step, draft=None, target=None, retrieve=None, slots=None)
    letters = dict.fromkeys(range(24), b"x")
    view = step_view(trace_of(tmp_path / "t.ddviz", bare, token_bytes=letters), 0)
    assert view["draft"] is None
    assert view["arrays"]["slots"] is None
    assert view["nodes"][0]["raw_top"] is None


def test_a_greedy_step_whose_logits_were_changed_is_held_against_the_changed_ones():
    """A penalty keeps the raw argmax out: what was followed stands in target.filtered, with no margin."""
    trace = make_trace(Setup(seed=3, temperature=0.0))
    place = next(i for i, step in enumerate(trace.steps) if step.accept.num_accepted)
    step = trace.steps[place]
    raw, n = step.target.raw, len(step.tree.tokens)
    other = [token + 1 for token in raw.argmax]
    changed = FilteredRows(node_probs=[0.5] * n, top_ids=[[token] for token in raw.argmax])
    raw.argmax, step.target.filtered = other, changed
    view = step_view(replace(trace, steps=[*trace.steps[:place], step]), place)
    assert differs(view) == []
    assert view["exams"][0]["margin"] is None
    assert view["exams"][0]["argmax"]["id"] == changed.top_ids[0][0]
    assert "contradiction" not in " ".join(filter(None, (node["why"] for node in view["nodes"])))
    step.target.filtered = None
    assert differs(step_view(replace(trace, steps=[*trace.steps[:place], step]), place)) != []
