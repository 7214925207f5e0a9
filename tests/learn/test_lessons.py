"""What the lessons say is true of their traces, and what is wrong in a lesson is told."""

import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ddviz.analysis.whatif import whatif
from ddviz.check.doctor import examine
from ddviz.errors import BadValueError
from ddviz.learn.lesson import HERE, course, find_lesson, glossary, read_lesson, short_name
from ddviz.learn.markdown import inline_text, links_of, plain_text
from ddviz.learn.page import course_json, lesson_json
from ddviz.learn.tasks import RUN_CAPS, Step, encoding, smallest_budget
from ddviz.trace import load
from ddviz.trace.schema import STAGES
from ddviz.tree import build_tree, depths_of, node_statuses, unpack_mask

ROOT = Path(__file__).parents[2]
FILES = sorted((HERE / "lessons").glob("*.md"))
ORDER = ["slow", "chain", "tree", "build", "encode", "greedy", "sampling", "commit", "tradeoffs", "doctor"]
PAPERS = {"2211.17192", "2302.01318", "2401.15077", "2602.06036", "2604.12989"}


class Taught:
    """A lesson, its step, and what it says."""

    def __init__(self, name):
        self.lesson = find_lesson(name)
        self.trace = load(self.lesson.trace)
        self.step = self.trace.steps[self.lesson.step]
        parts = [plain_text(getattr(self.lesson, part)) for part in ("text", "question", "hint", "right")]
        self.words = " ".join(" ".join(parts).split())

    def says(self, *sentences):
        for sentence in sentences:
            assert sentence in self.words, f"{self.lesson.name} does not say: {sentence}"

    def label(self, token):
        return self.trace.tokens.label(token)

    def node(self, i):
        return self.label(self.step.tree.tokens[i])

    def argmax(self, i):
        return self.label(self.step.target.argmax[i])

    def statuses(self):
        step = self.step
        links = step.retrieve
        path = step.local_path
        return node_statuses(
            len(step.tree.tokens), path, np.array(links.next_token), np.array(links.next_sibling)
        )


taught = cache(Taught)


# ------------------------------------------------------------------ the course


def test_the_ten_lessons_stand_in_their_order():
    assert [short_name(lesson.name) for lesson in course()] == ORDER
    assert [entry["name"] for entry in course_json()["lessons"]] == ORDER


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_lesson_fits_its_trace_and_names_its_sources(path):
    lesson = read_lesson(path)
    shown = lesson_json(lesson, str)
    assert shown["question"] and shown["hint"] and shown["right"]
    cited = set(re.findall(r"arxiv\.org/abs/([\d.]+)", " ".join(links_of(lesson.sources))))
    assert cited and cited <= PAPERS
    assert cited == set(re.findall(r"arXiv (\d{4}\.\d{5})", plain_text(lesson.sources)))
    assert len(plain_text(lesson.text).split()) < 260, "a lesson is short"


def test_every_paper_is_cited():
    links = {link for lesson in course() for link in links_of(lesson.sources)}
    cited = {link.rsplit("/", 1)[-1] for link in links if "//arxiv.org/" in link}
    assert cited == PAPERS


def test_the_glossary_has_the_words_of_the_project():
    words = {"step", "root", "node", "depth", "rank", "score", "budget", "topk_cap", "bonus", "coin", "slot"}
    words |= {"draft_prob", "target_prob", "status", "residual", "accepted-path", "accept-length"}
    words |= {"target", "drafter", "forward", "position", "heap", "first-child", "ancestor-mask", "argmax"}
    words |= {"KV-cache"}
    assert words == set(glossary())


def test_what_lessons_use_ships_in_the_wheel():
    packaged = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '"ddviz.learn" = ["*.js", "*.css", "*.md", "*.ddviz", "lessons/*.md"]' in packaged
    assert '"ddviz.traces" = ["*.ddviz", "README.md"]' in packaged
    used = {path for lesson in course() for path in (lesson.trace, (lesson.beside or [lesson.trace])[0])}
    assert {path.parent for path in used} <= {ROOT / "traces", HERE}
    assert sum(path.stat().st_size for path in used) < 1_000_000


# ------------------------------------------------------------------ what each says


def test_slow_is_true():
    own, tree = taught("slow"), load(ROOT / "traces/quicksort-greedy.ddviz")
    assert own.trace.header.algorithm == "AR" and own.trace.header.target.startswith("smollm2-135m")
    assert all(len(step.tree.tokens) == 1 and len(step.emitted) == 1 for step in own.trace.steps)
    assert (len(own.trace.steps), len(tree.steps)) == (184, 58)
    own.says("The whole answer takes 184 steps", "the whole answer in 58 instead of 184")
    assert own.trace.end.output_ids == tree.end.output_ids, "the same text"
    emitted = [own.label(step.emitted[0]) for step in own.trace.steps[:8]]
    assert emitted == ["python", "⏎", "def", "·qu", "icks", "ort", "(", "arr"]
    assert own.lesson.wants == {"answer": 7}
    own.says(
        "Eight forwards, steps 0 to 7, for eight tokens", "Step 0 adds python, step 1 the end of the line"
    )
    three = [token for step in list(tree.steps)[:3] for token in step.emitted]
    two = [token for step in list(tree.steps)[:2] for token in step.emitted]
    assert three[:8] == [step.emitted[0] for step in own.trace.steps[:8]] and len(two) < 8
    own.says("the same model wrote this text in three steps")


def test_chain_is_true():
    own = taught("chain")
    assert own.trace.header.algorithm == "DFLASH" and own.step.tree.parents == list(range(-1, 15))
    own.says("the 15 tokens after the root")
    agrees = [own.node(i + 1) == own.argmax(i) for i in range(15)]
    assert agrees.index(False) == 4 and own.lesson.wants == {"answer": [5]}
    assert (own.argmax(0), own.node(1), own.argmax(4), own.node(5)) == ("(", "(", "·if", "):")
    own.says("After node 0 the target wants (, and node 1 holds (")
    own.says("After node 4 the target wants ·if, but node 5 holds ):", "·if is the bonus: five tokens")
    assert own.step.accept.num_accepted == 4 and len(own.step.emitted) == 5
    assert own.statuses()[5:] == ["rejected", *["unreached"] * 10]
    own.says("Four nodes are accepted", "nodes 6 to 15 were drafted and verified for nothing")
    assert own.lesson.blind and own.lesson.stage == "verify"


def test_tree_is_true():
    own = taught("tree")
    path, place = own.lesson.beside
    chain = load(path).steps[place]
    assert own.step.prefix_len == chain.prefix_len and own.step.tree.tokens[0] == chain.tree.tokens[0]
    assert own.step.draft.top_ids == chain.draft.top_ids, "the same draft"
    assert own.trace.prompt.token_ids == load(path).prompt.token_ids
    assert [own.label(token) for token in (chain.tree.tokens[1], chain.accept.bonus)] == ["mid", "left"]
    assert chain.accept.num_accepted == 0 and len(chain.emitted) == 1
    own.says("The first node is rejected, and the step adds one token")
    assert [own.label(token) for token in own.step.emitted] == ["left", "·+", "·right"]
    own.says("adds three tokens: left, ·+ and the bonus ·right")
    assert own.trace.header.budget == 16 and (len(chain.tree.tokens), len(own.step.tree.tokens)) == (16, 17)
    own.says("16 and 17 with the root", "budget of 16 nodes")
    assert max(depths_of(own.step.tree.parents)) < 15, "less deep"
    assert own.node(1) == "mid" and own.statuses()[1] == "rejected"
    assert own.node(2) == "left" and own.step.tree.ranks[2] == 1 and own.step.tree.parents[2] == 0
    assert own.step.tree.tokens[2] not in chain.tree.tokens[1:2] and own.lesson.wants == {"answer": [2]}
    assert set(own.step.tree.ranks) == {0, 1, 2, 3}
    own.says("with second, third and fourth choices")
    own.says("Node 2, left, of rank 1: the drafter's second choice for the first position")
    before = [t for s in list(own.trace.steps)[: own.lesson.step] for t in s.emitted]
    assert "".join(own.trace.tokens.pieces(before)).endswith("mid = (")
    own.says("the root is ·( in mid = (")


def test_build_is_true():
    own = taught("build")
    step, header = own.step, own.trace.header
    assert (header.topk_cap, header.budget, own.lesson.step) == (4, 16, taught("tree").lesson.step)
    own.says("(4 here)", "Which 16 nodes", "It is the tree of the lesson before")
    tree = build_tree(
        np.array(step.draft.top_logprobs, np.float32),
        np.array(step.draft.top_ids),
        step.tree.tokens[0],
        16,
        4,
    )
    assert tree.tokens.tolist() == step.tree.tokens and tree.parents.tolist() == step.tree.parents
    six = [(own.node(i), step.tree.parents[i]) for i in range(1, 7)]
    assert six == [("mid", 0), ("left", 0), ("right", 0), ("·+", 1), ("·+", 2), ("arr", 0)]
    own.says("mid, left, right, then ·+ below mid, ·+ below left, then arr", "six times")
    own.says("at first one: the root's first child, of rank 0", "scores no higher than any node")
    assert own.lesson.wants == {"pops": 6} and own.lesson.blind
    assert step.tree.ranks[4] == step.tree.ranks[5] == 0, "one log-probability: that of rank 0 at depth 2"
    assert depths_of(step.tree.parents)[4:6] == [2, 2] and step.tree.scores[4] > step.tree.scores[5]
    assert all(score < 0 for score in step.tree.scores[1:])


def test_encode_is_true():
    own = taught("encode")
    right = encoding(own.step)
    assert own.step.prefix_len == 104
    own.says("here 104 + depth")
    assert right["next_token"] == own.step.retrieve.next_token
    assert right["next_sibling"] == own.step.retrieve.next_sibling
    assert right["position"] == own.step.positions
    assert np.array_equal(right["mask"], unpack_mask(own.step.mask, 17))
    link, position, bit = own.lesson.wants["plant"]
    parents = own.step.tree.parents
    assert link[:2] == ("next_sibling", 3) and parents[link.value] != parents[3], (
        "a sibling has the same parent"
    )
    assert position.value == 104 + position.at != right["position"][position.at], "positions count depth"
    assert (bit.at, bit.column, right["mask"][9][1]) == (9, 1, 0)
    assert own.node(parents[9]) == "left" and own.node(1) == "mid"
    own.says("Node 9 lies below left, so it must not see mid")


def test_greedy_is_true():
    own = taught("greedy")
    assert own.trace.header.sampling.temperature == 0 and own.step.local_path == [0, 2, 5]
    assert (own.argmax(0), own.argmax(2), own.argmax(5)) == ("left", "·+", "·right")
    own.says("the 17 nodes", "After node 0 the target wants left")
    own.says("Two nodes are accepted, 2 and 5, and ·right is the bonus: accept length 3")
    statuses = own.statuses()
    assert statuses[1] == "rejected" and statuses[3] == statuses[6] == "unreached"
    assert [i for i, parent in enumerate(own.step.tree.parents) if parent == 0] == [1, 2, 3, 6]
    own.says("Node 1 was examined first and refused. Nodes 3 and 6 were not examined any more")


def test_sampling_is_true():
    own = taught("sampling")
    probs = own.step.target.filtered.node_probs
    children = [i for i, parent in enumerate(own.step.tree.parents) if parent == 0]
    assert own.trace.header.sampling.temperature == 1 and children == [1, 3, 4, 5]
    assert [f"{probs[i]:.3f}" for i in (1, 3, 4)] == ["0.199", "0.059", "0.256"]
    sums = np.cumsum([probs[i] for i in children])
    assert [f"{value:.3f}" for value in sums[2:]] == ["0.514", "0.571"]
    assert f"{own.step.sampling.coins[0]:.3f}" == "0.282" and round(100 * (1 - sums[3])) == 43
    own.says("the root's coin was 0.282", "The running sum of node 4 is 0.199 + 0.059 + 0.256")
    own.says("Above 0.514 node 4 is refused, up to 0.571 node 5 is taken, beyond it none: 43% of the coins")
    assert own.statuses()[4] == "accepted" and own.lesson.wants == {"reject": 4, "draws": 1000}
    own.says("until node 4 is rejected", "draw a thousand first tokens")


def test_commit_is_true():
    own = taught("commit")
    commit, step = own.step.commit, own.step
    assert step.slots == [104 + i for i in range(17)] and step.local_path == [0, 2, 5]
    own.says("all 17 nodes", "into slot 104 + i", "in slot 104 + its number")
    assert commit.src_slots == [104, 106, 109] and commit.dst_slots == [104, 105, 106]
    assert [step.positions[i] for i in step.local_path] == commit.dst_slots, (
        "a row's position was right already"
    )
    assert commit.committed_len == 107
    after = own.trace.steps[own.lesson.step + 1]
    assert after.tree.tokens[0] == step.accept.bonus and own.label(step.accept.bonus) == "·right"
    assert after.slots[0] == 107
    own.says("107 rows are committed now", "into slot 107", "The bonus ·right")


def test_tradeoffs_is_true():
    own = taught("tradeoffs")
    table = next(block for block in own.lesson.text if block[0] == "table")
    for row, name in zip(table[2], ("quicksort-greedy", "quicksort-t1.0"), strict=True):
        trace = load(ROOT / f"traces/{name}.ddviz")
        assert inline_text(row[0]) == f"temperature {trace.header.sampling.temperature:g}"
        (found,) = whatif([trace], [4, 16, 64], [4])
        means = [estimate.at_recorded_starts for estimate in found.estimates]
        assert [inline_text(cell) for cell in row[1:]] == [f"{mean:.2f}" for mean in means]
        assert f"{means[1]:.4f}" == f"{found.recorded_accept_length:.4f}", "budget 16 is the recorded one"
        own.says(f"{round(100 * (means[2] / means[1] - 1))}%")
    assert RUN_CAPS == (1, 2, 4, 8, 16)
    own.says("for a cap between 1, 2, 4, 8 and 16, at the one below")
    own.says("for a gain of 14% and 2%", "nearly four times as large")
    assert 3.7 < 65 / 17 < 4
    drawn = lesson_json(own.lesson, str)["runs"]
    assert [(run["name"], run["temperature"]) for run in drawn] == [
        ("quicksort-greedy", 0),
        ("quicksort-t1.0", 1),
    ]
    for run, row in zip(drawn, table[2], strict=True):
        shown = dict(zip(run["budgets"], run["means"][4], strict=True))
        assert [f"{shown[budget]:.2f}" for budget in (4, 16, 64)] == [inline_text(cell) for cell in row[1:]]
    greedy, warm = (run["lengths"] for run in drawn)
    own.says("At temperature 0 the greedy run has its recorded 3.19; at 1 it would have 2.91")
    assert [f"{greedy[0][0]:.2f}", f"{greedy[-1][0]:.2f}"] == ["3.19", "2.91"]
    assert all(below[1] < above[0] for below, above in zip(warm, greedy, strict=True)), "stays below"
    at = Step(own.trace, own.lesson.step)
    assert [smallest_budget(at, 4, cap) for cap in (1, 2, 4)] == [None, 10, 21]
    assert own.lesson.wants == {"reach": 4, "cap": 4} and own.step.accept.num_accepted + 1 == 3
    own.says("21 nodes. With a cap of 2 the same path is covered by 10", "with a cap of 1 by none")
    chain = taught("tree")
    assert chain.node(1) == "mid" and chain.statuses()[1] == "rejected", "a chain can't leave mid"


def test_doctor_is_true():
    own = taught("doctor")
    found = examine(own.trace)
    assert [(f.rule, f.step, f.node) for f in found] == [
        ("mask", 4, 10),
        ("positions", 7, 16),
        ("sampled-path", 9, 0),
    ]
    assert own.lesson.wants == {"answer": [[f.step, f.node] for f in found]}
    own.says(
        "three faults", "mask and positions show in stage 3, compile. sampled-path shows in stage 4, verify"
    )
    well = load(ROOT / "traces/animal-seed1.ddviz")
    assert examine(well) == [] and own.trace.end.output_ids == well.end.output_ids
    parents = own.trace.steps[4].tree.parents
    assert parents[1] == 0 and parents[10] == 3, "the mask lets a branch see another"
    assert own.trace.steps[7].positions[16] == own.trace.steps[7].prefix_len + 16, "counted by index"
    assert own.trace.steps[9].sampling.coins[0] != well.steps[9].sampling.coins[0], (
        "not the coin that was used"
    )


# ------------------------------------------------------------------ errors

GOOD = """---
title: My lesson
trace: mine
step: 2
stage: verify
node: 1
task: click
answer: 1, bonus   # either
---
Words about a [root](#root).

# Question

Which?

# Hint

That.

# Right

Yes.
"""


@pytest.fixture
def own(tmp_path):
    """Writes a lesson beside a trace of its own; returns how reading it ends."""
    shutil.copy(ROOT / "traces/animal-seed1.ddviz", tmp_path / "mine.ddviz")

    def read(text):
        (tmp_path / "own.md").write_text(text, "utf-8")
        return find_lesson(str(tmp_path / "own.md"))

    return read


def test_a_lesson_of_ones_own_is_read_with_the_trace_beside_it(own, tmp_path):
    lesson = own(GOOD)
    assert (lesson.name, lesson.title, lesson.trace) == ("own", "My lesson", tmp_path / "mine.ddviz")
    assert (lesson.step, lesson.stage, lesson.node) == (2, "verify", 1) and lesson.stage in STAGES
    assert lesson.wants == {"answer": [1, "bonus"]}
    assert lesson.question == [["p", ["Which?"]]]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("---\ntitle", "title", 1, "begins with front matter"),
        ("title: My lesson\n", "", 1, "the field title is missing"),
        ("step: 2", "step: two", 4, "step is 'two', must be a whole number"),
        ("step: 2", "step: 99", 4, "names step 99; mine has 16 steps"),
        ("trace: mine", "trace: nine", 3, "there is no nine.ddviz beside the lesson"),
        ("stage: verify", "stage: verfy", 5, "did you mean verify?"),
        ("node: 1", "node: 40", 6, "has nodes 0 to 16"),
        ("task: click", "task: clack", 7, "did you mean click?"),
        ("answer: 1, bonus", "answer: 1, 77", 8, "answer is node 77"),
        ("answer: 1, bonus", "answer: yes", 8, "answer is 'yes', must be a node"),
        ("answer: 1, bonus   # either\n", "", 1, "task click needs the field answer"),
        ("node: 1", "nodes: 1", 6, "nodes is no field of a lesson; did you mean node?"),
        ("node: 1", "node: 1\nnode: 2", 7, "the field node comes twice"),
        ("node: 1", "hide: text, txt", 6, "hide names 'txt'"),
        ("node: 1", "runs: mine, quicksort-ar", 6, "names quicksort-ar, whose steps hold no draft"),
        ("(#root)", "(#rot)", 10, "no term of the glossary; did you mean root?"),
        ("(#root)", "(ftp://x.y)", 10, "must be https://"),
        ("[root](#root)", "![a](b.png)", 10, "can't hold this kind of Markdown (image)"),
        ("# Hint", "# Hints", 16, "# Hints is no section of a lesson; did you mean Hint?"),
        ("# Hint\n\nThat.\n", "", 19, "the section # Hint is missing"),
        ("# Hint", "# Question", 16, "the heading # Question comes twice"),
        ("task: click\nanswer: 1, bonus", "task: walk", 4, "must be a greedy step"),
        ("either\n---\n", "either\n", 9, "the front matter is not closed; end it with a line --- before it"),
        ("node: 1", "node 1", 6, "'node 1' must be NAME: VALUE"),
        ("step: 2", "step: 99999999999", 4, "names step 99999999999; mine has 16 steps"),
        ("trace: mine", "trace: mnie", 3, "did you mean mine?"),
        ("node: 1", "reject: 1", 6, "reject is a field of task coin, not of click"),
        ("[root](#root)", "<b>root</b>", 10, "can't hold this kind of Markdown (html"),
        ("Words", "<div>\n\nWords", 10, "can't hold this kind of Markdown (html block)"),
        ("(#root)", "(javascript:alert(1))", 10, "must be https://"),
        ("node: 1", "hide: viewer", 6, "names viewer, where task click is answered"),
        ("node: 1", "hide: text, tree", 6, "names tree, where task click is answered"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(own, old, new, line, says):
    assert GOOD.count(old) == 1
    with pytest.raises(BadValueError) as error:
        own(GOOD.replace(old, new))
    told = str(error.value)
    assert f"own.md: line {line}: " in told, told
    assert says in told, told


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("task: step\nanswer: 0", "another than 0"),
        ("task: pop\npops: 40", "pops is 40, must be 1 to 16"),
        ("task: links\nplant: next_token[0] = 1", "which is right"),
        ("task: links\nplant: next_token[0]", "must be wrong entries"),
        ("task: coin\nreject: 9", "must be a child of the root"),
        ("task: pack", "accepts a node"),
        ("task: whatif\nreach: 1\ncap: 400", "cap is 400, must be 1 to 16"),
        ("task: whatif\nreach: 1\ncap: 0", "cap is 0, must be 1 to 16"),
        ("task: coin\nreject: 1\ndraws: 999999999", "draws is 999999999, must be 1 to 100000"),
        ("task: coin\nreject: 1\ndraws: 0", "draws is 0"),
        ("task: step\nanswer: 3\nhide: viewer", "where task step is answered"),
        ("task: findings\nanswer: 3/1\nhide: tree", "where task findings is answered"),
        ("task: whatif\nreach: 40", "no budget up to 64"),
        ("task: findings\nanswer: 3/1", "the doctor finds nothing there"),
    ],
)
def test_a_task_that_its_step_can_not_carry_is_refused(own, task, says):
    with pytest.raises(BadValueError, match=re.escape(says)):
        own(GOOD.replace("step: 2", "step: 0").replace("task: click\nanswer: 1, bonus", task))


def test_a_missing_lesson_is_told():
    with pytest.raises(BadValueError, match="the lessons are slow, chain"):
        find_lesson("slwo")
    with pytest.raises(BadValueError, match="can't read the lesson"):
        find_lesson("/nowhere/x.md")
