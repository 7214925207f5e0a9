"""Counts over steps: a tree small enough to draw, sums that must agree, and the command."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddviz.analysis.stats import Group, count_step, stats
from ddviz.analysis.stats_report import as_dict
from ddviz.analysis.traces import gather
from ddviz.cli import main
from ddviz.errors import TraceError
from ddviz.trace.schema import Accept, Step, Tree
from tests.synthetic import Setup, make_trace, write_trace

#   root 0 ── 1 a ✓ ── 3 b ✗      ranks: a 0, d 1, b 0, c 1, e 0
#          │        └─ 4 c ✗      the walk: a accepted; b, c refused; the bonus follows a
#          └─ 2 d ── 5 e
DRAWN = Step(
    index=0,
    prefix_len=9,
    tree=Tree(tokens=[7, 1, 4, 2, 3, 5], parents=[-1, 0, 0, 1, 1, 2], ranks=[0, 0, 1, 0, 1, 0]),
    accept=Accept(index=[0, 1], num_accepted=1, predicts=[1, 9], bonus=9, kernel="greedy"),
    emitted=[1],  # cut
    times_us={"draft": 10.0, "verify": 30.0},
)


def counted(*steps):
    group = Group("6-2", 0.0)
    for step in steps:
        count_step(group, step)
    return group


def test_the_drawn_step():
    group = counted(DRAWN)
    by_depth = {d: (c.nodes, c.reached, c.examined, c.accepted) for d, c in group.depths.items()}
    assert by_depth == {1: (2, 1, 1, 1), 2: (3, 1, 1, 0)}
    by_rank = {r: (c.nodes, c.examined, c.accepted) for r, c in group.ranks.items()}
    assert by_rank == {0: (3, 2, 1), 1: (2, 1, 0)}
    assert (group.accept_length, group.tokens_per_step) == (2.0, 1.0)
    assert group.tokens_per_s == pytest.approx(1 / 40e-6)


def test_a_path_that_ends_at_a_leaf_reaches_the_next_depth_without_examining_it():
    leaf = Step(
        index=0,
        prefix_len=9,
        tree=Tree(tokens=[7, 1], parents=[-1, 0], ranks=[0, 0]),
        accept=Accept(index=[0, 1], num_accepted=1, predicts=[1, 9], bonus=9, kernel="greedy"),
        emitted=[1, 9],
    )
    below = counted(leaf).depths[2]
    assert (below.nodes, below.reached, below.examined, below.accepted) == (0, 1, 0, 0)


def test_a_damaged_tree_counts_as_a_step_alone():
    DRAWN.tree.parents[5], before = 8, DRAWN.tree.parents[5]
    try:
        group = counted(DRAWN)
    finally:
        DRAWN.tree.parents[5] = before
    assert (group.steps, group.odd_steps, dict(group.depths)) == (1, 1, {})


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.7]),
    algorithm=st.sampled_from(["DDTREE", "DFLASH", "AR"]),
)
def test_counts_by_depth_and_by_rank_add_up_to_the_accepted_nodes(seed, temperature, algorithm):
    trace = make_trace(Setup(seed=seed, temperature=temperature, algorithm=algorithm, noise=0.5))
    group = stats([trace]).all
    accepted = sum(step.accept.num_accepted for step in trace.steps)
    assert sum(count.accepted for count in group.depths.values()) == accepted
    assert sum(count.accepted for count in group.ranks.values()) == accepted
    assert group.accept_lengths == accepted + len(trace.steps)
    for depth, count in group.depths.items():
        assert count.reached >= count.examined >= count.accepted
        if depth > 1:
            assert count.reached == group.depths[depth - 1].accepted


def test_one_group_per_setting_and_temperature():
    traces = [
        make_trace(Setup(seed=seed, temperature=t, budget=b))
        for seed in (1, 2)
        for t in (0.0, 0.6)
        for b in (4, 9)
    ]
    found = stats(traces)
    assert [(g.setting, g.temperature, g.traces) for g in found.groups] == [
        ("4-3", 0.0, 2), ("9-3", 0.0, 2), ("4-3", 0.6, 2), ("9-3", 0.6, 2),
    ]  # fmt: skip
    assert found.all.steps == sum(len(trace.steps) for trace in traces)
    json.dumps(as_dict(found))


def test_a_folder_is_read_below_and_what_can_not_be_read_is_told(tmp_path):
    (tmp_path / "deep").mkdir()
    write_trace(tmp_path / "deep" / "a.ddviz", Setup(seed=1))
    (tmp_path / "b.ddviz").write_bytes(b"nothing")
    found = gather(tmp_path)
    assert [trace.name for trace in found.traces] == ["a"] and "b.ddviz" in found.notes[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="ddviz record"):
        gather(tmp_path / "empty")


def test_the_command_prints_tables_and_json(tmp_path, capsys):
    for name, temperature in (("a", 0.0), ("b", 1.0)):
        write_trace(tmp_path / f"{name}.ddviz", Setup(seed=3, temperature=temperature))
    assert main(["stats", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    for title in ("Runs", "Acceptance by depth", "Acceptance by rank", "temperature", "Time per stage"):
        assert title in told
    assert main(["stats", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"by_depth", "by_rank", "stages_ms", "accept_length"} <= said["groups"][0].keys()
    assert main(["stats", str(tmp_path / "none.ddviz")]) == 2
