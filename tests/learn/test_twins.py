"""What the lessons compute in the browser is what the project's Python computes."""

import json
import re
import subprocess

import numpy as np
import pytest

from ddviz.analysis.whatif import ask, continuations
from ddviz.check.gtest import against_law
from ddviz.learn.lesson import HERE, find_lesson
from ddviz.learn.page import FILES, learn_assets
from ddviz.learn.tasks import Step as LessonStep
from ddviz.learn.tasks import _continuation, _draft, encoding, smallest_budget
from ddviz.trace import load
from ddviz.tree import compile_ddtree_retrieve, follow_verified_tree, sample_tree_paths
from ddviz.viewer import step_view
from ddviz.viewer.html import HERE as VIEWER
from tests.viewer.test_build_search import node as node_program

PARTS = [VIEWER / "format.js", VIEWER / "build_search.js"]
PARTS += [HERE / f"{name}.js" for name in ("twin_accept", "twin_compile", "twin_whatif", "piece_coin")]
HARNESS = """
const data = JSON.parse(require("fs").readFileSync(0, "utf8"));
const known = { samplePath, followArgmax, encodeTree, treeAt, smallestBudget, firstTokenLaw, drawMany };
function drawMany(view, count) {
  const [law, coins] = [firstTokenLaw(view), newCoins(COIN_SEED)];
  const counts = law.row.map(() => 0);
  for (let k = 0; k < count; k++) counts[drawFirst(law, coins(), coins()).token] += 1;
  return { counts, row: law.row, names: law.names };
}
console.log(JSON.stringify(data.map(([name, ...words]) => known[name](...words))));
"""


def twins(calls):
    """Answers of the JavaScript functions: [name, argument, ...] each."""
    script = "\n".join(path.read_text("utf-8") for path in PARTS) + HARNESS
    ran = subprocess.run(
        [node_program(), "-e", script], input=json.dumps(calls), capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout)


def random_tree(rng, vocabulary):
    """Parents of up to 14 nodes, and tokens that differ among siblings."""
    n = int(rng.integers(1, 15))
    parents = np.array([-1, *(int(rng.integers(0, i)) for i in range(1, n))], np.int32)
    tokens = rng.integers(0, vocabulary, n)
    for parent in range(n):
        children = np.flatnonzero(parents == parent)[:vocabulary]
        tokens[children] = rng.permutation(vocabulary)[: len(children)]
    keep = [0]  # a vocabulary may be too small for all siblings
    for i in range(1, n):
        if parents[i] in keep and sum(parents[j] == parents[i] for j in keep) < vocabulary:
            keep.append(i)
    place = {old: new for new, old in enumerate(keep)}
    return np.array([place.get(parents[i], -1) for i in keep], np.int32), tokens[keep]


def random_rows(rng, n, vocabulary):
    rows = rng.dirichlet(np.full(vocabulary, 0.5), n).astype(np.float32)
    rows[rng.random(rows.shape) < 0.2] = 0
    return rows / np.maximum(rows.sum(axis=1, keepdims=True), np.float32(1e-9))


def links(parents):
    return compile_ddtree_retrieve(parents)


def test_the_sampled_walk_is_that_of_the_project():
    rng, calls, expected = np.random.default_rng(5), [], []
    for case in range(400):
        vocabulary = int(rng.integers(4, 10))
        parents, tokens = random_tree(rng, vocabulary)
        made, n = links(parents), len(parents)
        rows, coins = random_rows(rng, n, vocabulary), rng.random(n, np.float32)
        final, most = np.float32(rng.random()), int(rng.integers(1, 6))
        single, acc = (1.0, 1.0) if case % 4 else (0.6, 0.7)
        found = sample_tree_paths(
            *(a[None] for a in (tokens, made.index, made.next_token, made.next_sibling, rows, coins)),
            np.array([final]), most, single, acc,
        )  # fmt: skip
        count = int(found.num_accepted[0])
        path = found.accept_index[0, : count + 1].tolist()
        expected.append((path, [int(found.predicts[i]) for i in path], float(found.residual_sum[0])))
        tree = {"tokens": tokens.tolist(), "nextToken": made.next_token.tolist()}
        tree["nextSibling"] = made.next_sibling.tolist()
        calls.append(["samplePath", tree, rows.tolist(), coins.tolist(), float(final), most, single, acc])
    answers = twins(calls)
    assert [(a["path"], a["emitted"]) for a in answers] == [e[:2] for e in expected]
    assert [a["residual"] for a in answers] == pytest.approx([e[2] for e in expected], abs=1e-6)
    assert len({len(path) for path, _, _ in expected}) > 3, "paths of several lengths were compared"


def test_the_greedy_walk_is_that_of_the_project():
    rng, calls, expected = np.random.default_rng(6), [], []
    for _ in range(200):
        parents, tokens = random_tree(rng, 5)
        made, argmax, most = links(parents), rng.integers(0, 5, len(parents)), int(rng.integers(1, 6))
        found = follow_verified_tree(
            *(a[None] for a in (tokens, made.index, made.next_token, made.next_sibling, argmax)), most
        )
        path = found.accept_index[0, : int(found.num_accepted[0]) + 1].tolist()
        expected.append({"path": path, "emitted": [int(found.predicts[i]) for i in path]})
        tree = {"tokens": tokens.tolist(), "nextToken": made.next_token.tolist()}
        calls.append(
            ["followArgmax", {**tree, "nextSibling": made.next_sibling.tolist()}, argmax.tolist(), most]
        )
    assert twins(calls) == expected


def test_the_encoding_is_that_of_the_project():
    trace = load(find_lesson("encode").trace)
    steps = [trace.steps[i] for i in range(0, len(trace.steps), 3)]
    assert twins([["encodeTree", s.tree.parents, s.prefix_len] for s in steps]) == [
        encoding(s) for s in steps
    ]


def test_what_another_budget_accepts_is_what_whatif_says():
    trace = load(find_lesson("tradeoffs").trace)
    settings = [(budget, cap) for budget in (1, 7, 16, 40) for cap in (1, 2, 4, 16)]
    calls, expected = [], []
    for place, (step, text) in enumerate(continuations(trace)):
        if place % 8 == 0:
            at, root = LessonStep(trace, place), step.tree.tokens[0]
            draft = step_view(trace, place)["draft"]
            calls += [["treeAt", draft, root, text[:16], *setting] for setting in settings]
            expected += [a.accept_length for a in ask(*_draft(at), root, text, settings)]
    assert [len(answer["path"]) + 1 for answer in twins(calls)] == expected
    lesson = find_lesson("tradeoffs")
    at = LessonStep(trace, lesson.step)
    draft = step_view(trace, lesson.step)["draft"]
    words = (draft, at.step.tree.tokens[0], _continuation(at), lesson.wants["reach"])
    caps = (1, 2, 4, 16)
    assert twins([["smallestBudget", *words, cap, 64] for cap in caps]) == [
        smallest_budget(at, lesson.wants["reach"], cap) for cap in caps
    ]


def test_draws_of_the_lesson_follow_the_target():
    """20,000 draws with the lesson's coins against the recorded row; the seed is fixed: no false alarm."""
    lesson = find_lesson("sampling")
    trace = load(lesson.trace)
    view = step_view(trace, lesson.step)
    (drawn,) = twins([["drawMany", view, 20_000]])
    children = view["nodes"][0]["children"]
    probs = {view["nodes"][i]["label"]: view["nodes"][i]["target_prob"] for i in children}
    assert {name: p for name, p in zip(drawn["names"], drawn["row"], strict=True) if name in probs} == probs
    assert sum(drawn["row"]) == pytest.approx(1)
    assert against_law(drawn["counts"], drawn["row"]).p_value > 1e-3
    assert against_law(drawn["counts"][::-1], drawn["row"]).p_value < 1e-6, "it would see another law"


def test_no_part_of_the_script_names_what_another_has_named():
    """All parts are one function: the later of two functions of a name would silently be used by both."""
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", learn_assets().js, re.MULTILINE)
    names += re.findall(r"^const \[(.+?)\] =", learn_assets().js, re.MULTILINE)
    assert len(FILES) > 15 and sorted({name for name in names if names.count(name) > 1}) == []
