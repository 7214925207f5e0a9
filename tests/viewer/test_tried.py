"""What the charts count of a step, against step_view; a tree small enough to draw is in test_view.py."""

import msgspec
import pytest

from ddviz.viewer import step_view
from ddviz.viewer.tried import path_entropy, tried
from tests.synthetic import Setup, make_trace

SETUPS = {
    "sampled": Setup(temperature=0.9, seed=5, max_new_tokens=60, stop_token_ids=()),
    "greedy": Setup(seed=6, max_new_tokens=60, stop_token_ids=()),
    "chain": Setup(algorithm="DFLASH", seed=7, max_new_tokens=60, stop_token_ids=()),
}


@pytest.mark.parametrize("name", SETUPS)
def test_what_was_tried_is_what_the_view_calls_accepted_or_rejected(name):
    trace = make_trace(SETUPS[name])
    refused = taken = 0
    for i, step in enumerate(trace.steps):
        view = step_view(trace, i)
        examined = [node for node in view["nodes"][1:] if node["status"] in ("accepted", "rejected")]
        wanted = sorted(
            [node["depth"], node["rank"], node["draft_prob"], int(node["status"] == "accepted")]
            for node in examined
        )
        found = sorted(tried(step, trace.header.score_kind))
        assert [[d, r, t] for d, r, _, t in found] == [[d, r, t] for d, r, _, t in wanted]
        assert [p for _, _, p, _ in found] == pytest.approx([p for _, _, p, _ in wanted], rel=0.01)
        taken += sum(t for *_, t in found)
        refused += sum(1 - t for *_, t in found)
    assert taken > 10 and refused > 10


def test_entropy_is_that_of_the_accepted_path():
    trace = make_trace(SETUPS["sampled"])
    for step in trace.steps:
        nodes = [flat - step.flat_root for flat in step.accept.index]
        assert path_entropy(step) == pytest.approx([step.target.raw.entropy[n] for n in nodes], rel=0.01)


def test_a_light_step_has_no_entropy_and_keeps_what_its_tree_says():
    step = make_trace(SETUPS["sampled"]).steps[0]
    light = msgspec.structs.replace(step, target=None, draft=None)
    assert path_entropy(light) is None
    found, whole = tried(light, "logprob"), tried(step, "logprob")
    assert [[d, r, t] for d, r, _, t in found] == [[d, r, t] for d, r, _, t in whole]
    assert [p for *_, p, _ in found] == pytest.approx([p for *_, p, _ in whole], rel=0.02)
    assert [p for *_, p, _ in tried(light, "none")] == [None] * len(found)
