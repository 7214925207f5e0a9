"""The first step where two traces part, and the array that did: planted, and by the command."""

import json

import pytest

from ddviz.analysis.parting import part
from ddviz.cli import main
from ddviz.trace.schema import Step
from tests.commands import ddviz
from tests.synthetic import Setup, events_of, make_trace, trace_of, write_trace

SETUP = Setup(seed=3, temperature=0.7, noise=0.5, stop_token_ids=())


def planted(change, place=2):
    events = events_of(SETUP)
    step = [event for event in events if isinstance(event, Step)][place]
    change(step)
    return trace_of(events)


def first_of(change):
    found = part(make_trace(SETUP), planted(change))
    return found.step, found.differences[0].array, found.differences[0].where


def test_equal_traces_do_not_part():
    found = part(make_trace(SETUP), make_trace(SETUP))
    assert found.is_same and found.step is None and found.differences == []


@pytest.mark.parametrize(
    ("change", "array", "where"),
    [
        (lambda s: s.draft.top_ids[1].reverse(), "draft.top_ids", "[1][0]"),
        (lambda s: s.tree.parents.__setitem__(5, 0), "tree.parents", "[5]"),
        (lambda s: s.retrieve.next_sibling.__setitem__(1, 7), "retrieve.next_sibling", "[1]"),
        (lambda s: s.positions.__setitem__(3, 1), "positions", "[3]"),
        (lambda s: setattr(s, "mask", b"\x01" + s.mask[1:-1] + b"\x7f"), "mask", None),
        (lambda s: s.target.filtered.node_probs.__setitem__(4, 0.5), "target.filtered.node_probs", "[4]"),
        (lambda s: s.sampling.coins.__setitem__(0, 0.123), "sampling.coins", "[0]"),
        (lambda s: setattr(s.accept, "bonus", 77), "accept.bonus", ""),
    ],
)
def test_a_planted_difference_is_found_where_it_is(change, array, where):
    step, found, place = first_of(change)
    assert (step, found) == (2, array)
    assert where is None or place == where


def test_what_is_no_difference_of_the_algorithm_is_let_pass():
    def moved(step):
        step.slots = [slot + 100 for slot in step.slots]
        step.target.raw.logsumexp = [value * 1.0001 for value in step.target.raw.logsumexp]
        step.target.raw.node_probs = None  # not recorded

    assert part(make_trace(SETUP), planted(moved)).is_same


def test_rows_of_a_batch_are_compared_by_local_indices():
    one, other = (make_trace(Setup(seed=3, batch_size=3, row=row, padding=2)) for row in (0, 2))
    found = part(one, other)
    assert "retrieve.index" not in [each.array for each in found.differences]


def test_another_budget_parts_at_the_tree_not_at_the_draft():
    one, other = (make_trace(Setup(seed=3, noise=0.5, budget=budget)) for budget in (12, 6))
    found = part(one, other)
    assert (found.step, found.differences[0].array) == (0, "tree.tokens")


def test_the_shorter_trace_is_named():
    events = events_of(SETUP)
    last = [event for event in events if isinstance(event, Step)][-1]
    found = part(make_trace(SETUP), trace_of([event for event in events if event is not last]))
    assert not found.is_same and "the other goes on" in found.ends


def test_the_command_exits_0_same_1_not_2_on_misuse(tmp_path, capsys):
    a = write_trace(tmp_path / "a.ddviz", SETUP)
    b = write_trace(
        tmp_path / "b.ddviz", Setup(seed=3, temperature=0.7, noise=0.5, budget=6, stop_token_ids=())
    )
    assert main(["diff", str(a), str(a)]) == 0
    assert "steps are the same" in capsys.readouterr().out
    assert main(["diff", str(a), str(b)]) == 1
    assert "the first that differs" in " ".join(capsys.readouterr().out.split())
    assert main(["diff", str(a), str(b), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == 0 and said["differences"][0]["array"] == "tree.tokens"
    assert main(["diff", str(a), str(tmp_path / "none.ddviz")]) == 2


def test_what_could_not_be_read_is_said(tmp_path):
    whole, cut = write_trace(tmp_path / "whole.ddviz", SETUP), tmp_path / "cut.ddviz"
    raw = whole.read_bytes()
    cut.write_bytes(raw[: len(raw) * 3 // 4])
    done = ddviz("diff", cut, cut)
    assert done.returncode == 0 and done.stderr.count("only what can be read is compared") == 2
    assert "whole.ddviz" not in ddviz("diff", whole, whole).stderr
