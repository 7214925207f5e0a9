"""The search that the viewer runs in the browser: build_tree's own tree, and what differs from it is told."""

import json
import os
import shutil
import subprocess
from functools import cache

import msgspec
import numpy as np
import pytest

from ddviz.trace import load
from ddviz.tree import build_tree
from ddviz.viewer import step_view
from ddviz.viewer.html import HERE
from tests.synthetic import Setup, make_trace
from tests.viewer.fixtures import write_trace

ROOT = HERE.parent.parent
# Reads one JSON list of calls, answers with one JSON list: search(step view) or build(draft, limits).
HARNESS = """
const data = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = data.map((call) => {
  if (call.step) return searchOf(call.step) && searchOf(call.step).differs;
  const { nodes, offers } = buildTree(call.draft, call.limits);
  const fronts = nodes.map((_, pops) => frontierAt({ offers }, pops).map((o) => [o.score, o.parent, o.rank]));
  return { nodes, fronts: call.fronts ? fronts : null };
});
console.log(JSON.stringify(answers));
"""


@cache
def node():
    found = shutil.which("node")
    if found is None:
        required = os.environ.get("CI") == "true" or os.environ.get("DDVIZ_REQUIRE_BROWSER") == "1"
        (pytest.fail if required else pytest.skip)(
            "no node on this machine; install it: apt-get install nodejs"
        )
    return found


def ask(calls):
    script = "\n".join((HERE / f"{name}.js").read_text("utf-8") for name in ("format", "build_search"))
    ran = subprocess.run(
        [node(), "-e", script + HARNESS], input=json.dumps(calls), capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout)


def differences(*views):
    return ask([{"step": view} for view in views])


# The twin -----------------------------------------------------------------------------------------


def random_case(seed):
    """Rows that fall; every third case is coarse, so that scores tie, and some candidates are impossible."""
    rng = np.random.default_rng(seed)
    depth, k = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    logprobs = np.sort(-rng.exponential(1.5, (depth, k)), axis=1)[:, ::-1].astype(np.float32)
    if seed % 3 == 0:
        logprobs = np.round(logprobs * 2) / np.float32(2)
    if seed % 5 == 0:
        logprobs[:, k // 2 + 1 :] = -np.inf
    tokens = np.array([rng.permutation(100)[:k] for _ in range(depth)])
    return logprobs, tokens, int(rng.integers(1, 70)), int(rng.integers(0, 6))


def test_the_twin_builds_the_same_tree_bit_for_bit():
    cases = [random_case(seed) for seed in range(400)]
    calls = [
        {
            "draft": {
                "ids": tokens.tolist(),
                "logprobs": [[None if np.isinf(p) else float(p) for p in row] for row in logprobs],
            },
            "limits": {"root": 7, "budget": budget, "topkCap": cap},
        }
        for logprobs, tokens, budget, cap in cases
    ]
    ties = 0
    for (logprobs, tokens, budget, cap), answer in zip(cases, ask(calls), strict=True):
        tree = build_tree(logprobs, tokens, 7, budget, cap)
        nodes = answer["nodes"]
        for name, expected in (
            ("token", tree.tokens),
            ("parent", tree.parents),
            ("depth", tree.depths),
            ("rank", tree.ranks),
        ):
            assert [node[name] for node in nodes] == expected.tolist()
        # JSON has no -Infinity: node writes null
        assert [-np.inf if n["score"] is None else n["score"] for n in nodes] == tree.scores.tolist()
        ties += len(set(tree.scores.tolist())) < len(tree)
    assert ties > 50  # the canonical order was put to the test


def test_the_frontier_holds_what_was_offered_and_not_popped_best_first():
    draft = {"ids": [[1, 2], [3, 4]], "logprobs": [[-0.25, -2.0], [-0.5, -1.0]]}
    (answer,) = ask([{"draft": draft, "limits": {"root": 0, "budget": 3}, "fronts": True}])
    #  pop 1: token 1 (-0.25) offers its sibling 2 and its child 3;  pop 2: 3 below 1;  pop 3: 4 below 1
    assert [node["token"] for node in answer["nodes"]] == [0, 1, 3, 4]
    assert answer["fronts"] == [
        [[-0.25, 0, 0]],
        [[-0.75, 1, 0], [-2.0, 0, 1]],
        [[-1.25, 1, 1], [-2.0, 0, 1]],
        [[-2.0, 0, 1]],
    ]


# Beside the recorded tree -------------------------------------------------------------------------


def sample_views():
    for path in sorted((ROOT / "traces").glob("*.ddviz")):
        trace = load(path)
        yield from (step_view(trace, i) for i in range(0, len(trace.steps), 3))


def test_no_sample_trace_differs_from_the_search_though_its_draft_is_rounded():
    views = list(sample_views())
    found = differences(*views)
    assert sum(answer is not None for answer in found) > 80
    assert not any(answer for answer in found if answer is not None)


@pytest.mark.parametrize("seed", range(4))
def test_no_synthetic_step_differs(seed):
    trace = make_trace(Setup(seed=seed, budget=24, topk_cap=seed, temperature=0.5 * seed))
    found = differences(*(step_view(trace, i) for i in range(len(trace.steps))))
    assert found == [[]] * len(trace.steps)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    trace = write_trace(tmp_path_factory.mktemp("search") / "t.ddviz", steps=2, budget=12)
    return step_view(trace, 1)


def planted(view, node, **changes):
    view = msgspec.json.decode(msgspec.json.encode(view))
    view["nodes"][node] |= changes
    return view


def test_a_planted_token_score_or_rank_is_found_at_its_node(right):
    assert differences(right) == [[]]
    token, score, rank = differences(
        planted(right, 4, id=right["nodes"][4]["id"] + 1),
        planted(right, 6, score=right["nodes"][6]["score"] - 0.01),
        planted(right, 5, rank=right["nodes"][5]["rank"] + 2),
    )
    assert [d["node"] for d in token] == [4]
    assert "the draft has" in token[0]["says"]
    assert [d["node"] for d in score] == [6]
    assert rank[0]["node"] == 5
    assert "the search pops" in rank[0]["says"]


def test_a_tree_that_stopped_early_or_was_built_with_another_budget_is_found(right):
    short = {**right, "nodes": right["nodes"][:-3]}
    larger = {**right, "build": {**right["build"], "budget": 9}}
    first, second = differences(short, larger)
    assert "3 more nodes" in first[-1]["says"]
    assert "used up its budget" in second[0]["says"]


def test_a_worse_candidate_in_place_of_a_better_one_is_found(right):
    """The last node is passed over for its next sibling, which the heap did not even hold yet."""
    last = right["nodes"][-1]
    rank = last["rank"] + 1
    worse = planted(right, last["i"], rank=rank, id=right["draft"]["ids"][last["depth"] - 1][rank])
    (found,) = differences(worse)
    assert found[0]["node"] == last["i"]
    assert f"the search pops rank {last['rank']} below node {last['parent']}" in found[0]["says"]


def test_without_a_draft_there_is_no_search(right):
    assert differences({**right, "draft": None}, {**right, "build": None}) == [None, None]
