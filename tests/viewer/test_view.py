"""The viewer's data: deltas, running text, and steps in full, right ones and damaged ones."""

import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddviz.trace import Recorder, TokenTable, load
from ddviz.trace.schema import (
    Accept,
    End,
    EngineInfo,
    FilteredRows,
    Header,
    Prefill,
    Retrieve,
    Sampling,
    SamplingParams,
    Step,
    Target,
    TargetRows,
    Tree,
)
from ddviz.viewer.view import MAX_ROWS, OutputText, empty_view, poll_view, step_view
from tests.viewer.fixtures import write_trace

#        0 root "A"
#       / \
#      1   2        1 "b" rejected, 2 "c" accepted
#         / \
#        3   4      3 "d" rejected, 4 "e" rejected; the bonus is "f"
TREE = Tree(
    tokens=[0, 1, 2, 3, 4], parents=[-1, 0, 0, 2, 2], ranks=[0, 0, 1, 0, 1], scores=[0, -0.5, -1, -1.5, -2]
)
LINKS = Retrieve(index=[10, 11, 12, 13, 14], next_token=[1, -1, 3, -1, -1], next_sibling=[-1, 2, -1, 4, -1])
LETTERS = {i: bytes([letter]) for i, letter in enumerate(b"Abcdef")}


def small_step(**changes) -> Step:
    fields = {
        "index": 0,
        "prefix_len": 7,
        "tree": TREE,
        "retrieve": LINKS,
        "accept": Accept(index=[10, 12], num_accepted=1, predicts=[2, 5], bonus=5, kernel="greedy"),
        "emitted": [2, 5],
        "times_us": {"draft": 1000.0, "verify": 3000.0},
    }
    return Step(**{**fields, **changes})


def sampled_step(coins=(0.4, 0.9, 0.9, 0.9, 0.9), probs=(None, 0.3, 0.2, 0.25, 0.25), **changes) -> Step:
    raw = TargetRows(
        top_ids=[[2, 1]] * 5,
        top_probs=[[0.5, 0.3]] * 5,
        entropy=[1.0] * 5,
        logsumexp=[2.0] * 5,
        argmax=[2] * 5,
        margin=[0.5] * 5,
    )
    target = Target(raw=raw, filtered=FilteredRows(node_probs=list(probs)))
    sampling = Sampling(coins=list(coins), final_coin=0.25, residual_sum=0.5, bonus_cdf=0.1, bonus_prob=0.5)
    accept = Accept(index=[10, 12], num_accepted=1, predicts=[2, 5], bonus=5, kernel="sampled")
    return small_step(**{"target": target, "sampling": sampling, "accept": accept, **changes})


def trace_of(path, *steps, token_bytes=LETTERS, finish=None, first=0, **header):
    head = Header(
        created="2026-01-01T00:00:00+00:00",
        engine=EngineInfo(name="hand", version="1"),
        algorithm="DDTREE",
        target="target",
        sampling=SamplingParams(),
        request_id="r",
        **header,
    )
    with Recorder(path, head, token_bytes.__getitem__, overwrite=True) as recorder:
        recorder.prompt([1, 2], "bc")
        recorder.prefill(Prefill(token=first))
        for step in steps:
            recorder.step(step)
        if finish:
            recorder.end(End(finish_reason=finish, output_ids=[first], steps=len(steps)))
    return load(path)


def assert_json(view):
    json.dumps(view, allow_nan=False)


# Deltas -------------------------------------------------------------------------------------------


def test_the_first_answer_brings_header_prompt_first_token_and_rows(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", small_step(), finish="stop", budget=4, topk_cap=2)
    view = poll_view(trace, 0)
    assert_json(view)
    assert view["header"]["name"] == "t"
    assert (view["header"]["budget"], view["header"]["topk_cap"], view["header"]["temperature"]) == (
        4,
        2,
        0.0,
    )
    assert view["prompt"] == ["b", "c"]
    assert view["first"]["text"] == "A"
    assert view["steps"] == [
        {
            "i": 0,
            "index": 0,
            "prefix_len": 7,
            "n": 5,
            "accept_len": 2,
            "emitted": [{"id": 2, "text": "c", "kind": "accepted"}, {"id": 5, "text": "f", "kind": "bonus"}],
            "top1": True,
            "tie": False,
            "tried": [[1, 0, 0.607, 0], [1, 1, 0.368, 1], [2, 0, 0.607, 0], [2, 1, 0.368, 0]],
            "entropy": None,
            "ms": 4.0,
            "stages": {"draft": 1.0, "verify": 3.0},
        }
    ]
    assert view["stats"] == {
        "steps": 1,
        "tokens": 2,
        "accept_length": 2.0,
        "tokens_per_s": 500.0,
        "step_ms": 4.0,
    }
    assert (view["end"], view["damage"], view["tail"]) == ("stop", None, "")


def test_a_later_answer_brings_only_what_is_new(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", *[small_step(index=i) for i in range(5)])
    view = poll_view(trace, 3)
    assert [row["i"] for row in view["steps"]] == [3, 4]
    assert (view["since"], view["total"], view["end"]) == (3, 5, None)
    assert "header" not in view
    assert "prompt" not in view


def test_an_answer_after_the_end_of_a_shorter_trace_is_empty(tmp_path):
    view = poll_view(trace_of(tmp_path / "t.ddviz", small_step()), 99)
    assert (view["steps"], view["total"], view["stats"]) == ([], 1, None)
    assert_json(view)


def test_a_long_trace_comes_in_several_answers_and_ends_with_the_last(tmp_path):
    trace = trace_of(
        tmp_path / "t.ddviz", *[small_step(index=i) for i in range(MAX_ROWS + 3)], finish="length"
    )
    first, second = poll_view(trace, 0), poll_view(trace, MAX_ROWS)
    assert (len(first["steps"]), first["end"]) == (MAX_ROWS, None)
    assert (len(second["steps"]), second["end"]) == (3, "length")
    assert second["stats"]["steps"] == MAX_ROWS + 3


def test_the_mean_accept_length_is_the_sum_over_steps_by_steps(tmp_path):
    trace = write_trace(tmp_path / "t.ddviz", steps=9)
    lengths = [step.accept.num_accepted + 1 for step in trace.steps]
    assert poll_view(trace)["stats"]["accept_length"] == pytest.approx(sum(lengths) / 9)


def test_a_cut_step_still_counts_its_whole_accept_length(tmp_path):
    view = poll_view(trace_of(tmp_path / "t.ddviz", small_step(emitted=[2])))
    assert view["steps"][0]["accept_len"] == 2
    assert [token["kind"] for token in view["steps"][0]["emitted"]] == ["accepted"]


def test_a_prefill_in_the_middle_comes_with_the_step_after_it(tmp_path):
    path = tmp_path / "t.ddviz"
    header = trace_of(path).header
    with Recorder(path, header, LETTERS.__getitem__, overwrite=True) as recorder:
        recorder.prefill(Prefill(token=0))
        recorder.step(small_step())
        recorder.prefill(Prefill(token=3))
        recorder.step(small_step(index=1))
    view = poll_view(load(path))
    assert view["first"]["text"] == "A"
    assert [row.get("prefill", {}).get("text") for row in view["steps"]] == [None, "d"]


def test_there_is_an_answer_before_there_is_a_trace():
    assert empty_view()["total"] == 0


# Running text -------------------------------------------------------------------------------------

FOX = "🦊".encode()
SPLIT = {0: b"A", 1: FOX[:2], 2: FOX[2:3], 3: FOX[3:], 4: "é".encode()[:1], 5: "é".encode()[1:]}


def chain(*emitted) -> Step:
    """A step that emits these tokens; the tree behind it does not matter here."""
    accept = Accept(
        index=[0], num_accepted=len(emitted) - 1, predicts=list(emitted), bonus=emitted[-1], kernel="greedy"
    )
    return Step(
        index=0, prefix_len=0, tree=Tree(tokens=[0], parents=[-1]), accept=accept, emitted=list(emitted)
    )


def texts(view):
    return [[token["text"] for token in row["emitted"]] for row in view["steps"]]


def test_a_character_split_over_tokens_stands_whole_at_its_last_token(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", chain(1, 2, 3), token_bytes=SPLIT)
    assert texts(poll_view(trace)) == [["", "", "🦊"]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_character_split_over_steps_survives_any_order_of_asking(tmp_path, order):
    trace = trace_of(tmp_path / "t.ddviz", chain(1), chain(2), chain(3), token_bytes=SPLIT)
    answers = {since: texts(poll_view(trace, since)) for since in order}
    assert answers == {0: [[""], [""], ["🦊"]], 1: [[""], ["🦊"]], 2: [["🦊"]]}


def test_a_character_may_begin_in_the_prefill_token(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", chain(5), token_bytes=SPLIT, first=4)
    view = poll_view(trace)
    assert (view["first"]["text"], texts(view)) == ("", [["é"]])


def test_what_the_output_never_finished_is_shown_as_bytes(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", chain(1), token_bytes=SPLIT, finish="length")
    assert poll_view(trace)["tail"] == "⟨f0 9f⟩"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.lists(st.integers(1, 3), min_size=1, max_size=40), st.integers(0, 40))
def test_text_is_the_same_however_tokens_and_calls_are_cut(text, widths, cut):
    data, table, tokens, at = text.encode("utf-8", "replace"), TokenTable(), [], 0
    for width in widths:
        table.update({len(tokens): data[at : at + width]})
        tokens.append(len(tokens))
        at += width
    whole, split = OutputText(), OutputText()
    expected = whole.take(tokens, table)
    assert split.take(tokens[:cut], table) + split.take(tokens[cut:], table) == expected
    assert split.unfinished() == whole.unfinished()


# One step -----------------------------------------------------------------------------------------


def test_statuses_path_bonus_and_order_of_a_drawn_tree(tmp_path):
    view = step_view(trace_of(tmp_path / "t.ddviz", small_step()), 0)
    assert_json(view)
    assert [node["status"] for node in view["nodes"]] == [
        "accepted",
        "rejected",
        "accepted",
        "rejected",
        "rejected",
    ]
    assert view["path"] == [0, 2]
    assert [node["children"] for node in view["nodes"]] == [[1, 2], [], [3, 4], [], []]
    assert [node["depth"] for node in view["nodes"]] == [0, 1, 1, 2, 2]
    assert view["bonus"]["parent"] == 2
    assert view["bonus"]["label"] == "f"
    assert view["faults"] == []
    assert all(node["faults"] == [] for node in view["nodes"])


def test_siblings_stand_in_link_order_not_in_index_order(tmp_path):
    links = Retrieve(index=[0, 1, 2, 3, 4], next_token=[2, -1, 3, -1, -1], next_sibling=[-1, -1, 1, 4, -1])
    view = step_view(trace_of(tmp_path / "t.ddviz", small_step(retrieve=links)), 0)
    assert view["nodes"][0]["children"] == [2, 1]
    assert view["nodes"][1]["status"] == "unreached"  # node 2 was examined first and taken


def test_a_step_without_optional_parts_has_nulls(tmp_path):
    bare = small_step(tree=Tree(tokens=[0, 1], parents=[-1, 0]), retrieve=None, accept=chain(1).accept)
    view = step_view(trace_of(tmp_path / "t.ddviz", bare), 0)
    assert_json(view)
    node = view["nodes"][1]
    for name in ("rank", "score", "draft_prob", "target_prob", "coin", "flat", "position", "slot", "entropy"):
        assert node[name] is None
    assert node["status"] == "rejected"
    assert view["faults"] == []


def test_a_sampled_verdict_names_coin_and_running_sum(tmp_path):
    nodes = step_view(trace_of(tmp_path / "t.ddviz", sampled_step()), 0)["nodes"]
    assert nodes[1]["why"].startswith("coin 0.4 > 0.3")
    assert nodes[2]["why"].startswith("coin 0.4 ≤ 0.5")
    assert (nodes[2]["judged_by"], nodes[2]["running"]) == (0.4, pytest.approx(0.5))
    assert nodes[4]["why"].startswith("coin 0.9 > 0.5")


def test_a_verdict_that_the_numbers_contradict_says_so(tmp_path):
    nodes = step_view(trace_of(tmp_path / "t.ddviz", sampled_step(coins=[0.6] * 5)), 0)["nodes"]
    assert nodes[2]["why"].startswith("accepted, yet coin 0.6 > 0.5")


def test_a_verdict_by_threshold_names_the_threshold(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", sampled_step(coins=[0.6] * 5), threshold_single=0.2)
    assert step_view(trace, 0)["nodes"][2]["why"] == "its target probability 0.2 ≥ threshold_single 0.2"


def test_two_nearly_equal_numbers_are_told_apart(tmp_path):
    trace = trace_of(
        tmp_path / "t.ddviz", sampled_step(coins=[0.30000001] + [0.9] * 4, probs=(None, 0.3, 0.2, 0, 0))
    )
    assert (
        "0.30000001" in step_view(trace, 0)["nodes"][1]["why"]
        or "≤" in step_view(trace, 0)["nodes"][1]["why"]
    )


def test_greedy_verdicts_follow_the_argmax(tmp_path):
    step = small_step(target=sampled_step().target)
    nodes = step_view(trace_of(tmp_path / "t.ddviz", step), 0)["nodes"]
    assert nodes[2]["why"] == "equals the target's argmax after node 0, margin 0.5"
    assert nodes[1]["why"] == "the target's argmax after node 0 is c (id 2), margin 0.5"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_verdict_of_a_right_trace_is_a_contradiction(tmp_path, temperature):
    trace = write_trace(tmp_path / "t.ddviz", steps=8, budget=24, temperature=temperature)
    for i in range(8):
        view = step_view(trace, i)
        assert_json(view)
        assert view["faults"] == []
        assert not any("contradiction" in (node["why"] or "") for node in view["nodes"])
        assert [node["id"] for node in view["nodes"] if node["i"] in view["path"][1:]] == [
            t["id"] for t in view["emitted"][: len(view["path"]) - 1]
        ]


def test_the_draft_probability_is_that_of_the_recorded_rank(tmp_path):
    trace = write_trace(tmp_path / "t.ddviz", steps=1)
    step, view = trace.steps[0], step_view(trace, 0)
    for node in view["nodes"][1:]:
        logprob = step.draft.top_logprobs[node["depth"] - 1][node["rank"]]
        assert node["draft_prob"] == pytest.approx(math.exp(logprob))


def test_without_candidate_lists_the_draft_probability_comes_from_scores(tmp_path):
    view = step_view(trace_of(tmp_path / "t.ddviz", small_step()), 0)
    assert view["nodes"][3]["draft_prob"] == pytest.approx(math.exp(-0.5))
    other = step_view(trace_of(tmp_path / "u.ddviz", small_step(), score_kind="none"), 0)
    assert other["nodes"][3]["draft_prob"] is None


def test_the_mask_is_given_row_by_row(tmp_path):
    trace = write_trace(tmp_path / "t.ddviz", steps=1, budget=4)
    view = step_view(trace, 0)
    for node in view["nodes"]:
        row = view["mask"][node["i"]]
        chain_up, at = {node["i"]}, node["parent"]
        while at >= 0:
            chain_up.add(at)
            at = view["nodes"][at]["parent"]
        assert {j for j, bit in enumerate(row) if bit == "1"} == chain_up


def test_a_step_that_is_not_there_is_an_index_error(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", small_step())
    for i in (-1, 1):
        with pytest.raises(IndexError):
            step_view(trace, i)


# Damaged steps ------------------------------------------------------------------------------------


def faults_of(view):
    return " ".join(view["faults"] + [fault for node in view["nodes"] for fault in node["faults"]])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tree": Tree(tokens=[0, 1, 2, 3, 4], parents=[-1, 0])}, "tree.parents holds 2 entries"),
        ({"tree": Tree(tokens=[0, 1, 2, 3, 4], parents=[-1, 99, 0, 2, 2])}, "its parent is 99"),
        ({"tree": Tree(tokens=[0, 1, 2, 3, 4], parents=[-1, 2, 1, 2, 2])}, "run in a circle"),
        ({"tree": Tree(tokens=[0, 1, 2, 3, 4], parents=[-1, 1, 0, 2, 2])}, "run in a circle"),
        ({"tree": Tree(tokens=[], parents=[])}, "the tree has no nodes"),
        (
            {"accept": Accept(index=[99], num_accepted=0, predicts=[5], bonus=5, kernel="greedy")},
            "is no node",
        ),
        ({"accept": Accept(index=[10, 10], num_accepted=1, predicts=[5], bonus=5, kernel="greedy")}, "twice"),
        ({"accept": Accept(index=[10], num_accepted=3, predicts=[5], bonus=5, kernel="greedy")}, "not 1 + 3"),
        ({"retrieve": Retrieve(index=[0], next_token=[1], next_sibling=[])}, "retrieve.next_sibling holds 0"),
        (
            {
                "retrieve": Retrieve(
                    index=[10, 11, 12, 13, 14], next_token=[1, -1, 3, -1, -1], next_sibling=[-1, 2, 1, 4, 3]
                )
            },
            "",
        ),
        (
            {
                "retrieve": Retrieve(
                    index=[10, 11, 12, 13, 14], next_token=[1, 3, -1, -1, -1], next_sibling=[-1, 2, -1, 4, -1]
                )
            },
            "place it below node 1",
        ),
        (
            {
                "retrieve": Retrieve(
                    index=[10, 11, 12, 13, 14], next_token=[1, -1, 3, -1, -1], next_sibling=[-1] * 5
                )
            },
            "no retrieve link leads to it",
        ),
        ({"positions": [7], "slots": []}, "positions holds 1 entries"),
    ],
)
def test_a_damaged_step_is_drawn_and_marked(tmp_path, change, says):
    view = step_view(trace_of(tmp_path / "t.ddviz", small_step(**change)), 0)
    assert_json(view)
    assert says in faults_of(view)
    assert_drawable(view)


def assert_drawable(view):
    """Every node hangs below the root exactly once."""
    listed = [child for node in view["nodes"] for child in node["children"]]
    assert sorted(listed) == list(range(1, len(view["nodes"])))
    for node in view["nodes"][1:]:
        assert node["i"] in view["nodes"][node["parent"]]["children"]
        assert node["depth"] == view["nodes"][node["parent"]]["depth"] + 1


def test_numbers_beyond_all_bounds_stay_json(tmp_path):
    tree = msgspec.structs.replace(TREE, scores=[0, 1e300, -1e300, None, 5])
    view = step_view(
        trace_of(tmp_path / "t.ddviz", sampled_step(tree=tree, probs=[None, 1e300, 1e300, 1, 1])), 0
    )
    assert_json(view)


small_ints = st.integers(-3, 9)
lists = st.lists(small_ints, max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 5), max_size=7),
    parents=lists,
    links=st.tuples(lists, lists, lists),
    path=lists,
)
def test_no_decodable_step_makes_the_view_raise(tmp_path_factory, tokens, parents, links, path):
    step = sampled_step(
        tree=Tree(tokens=tokens, parents=parents),
        retrieve=Retrieve(index=links[0], next_token=links[1], next_sibling=links[2]),
        accept=Accept(index=path, num_accepted=len(path), predicts=[], bonus=0, kernel="sampled"),
    )
    trace = trace_of(tmp_path_factory.getbasetemp() / "any.ddviz", step)
    view = step_view(trace, 0)
    assert_json(view)
    assert_json(poll_view(trace))
    assert_drawable(view)
    assert np.isin([node["status"] for node in view["nodes"]], ["accepted", "rejected", "unreached"]).all()
