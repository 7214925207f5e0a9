"""`ddviz show`: facts, steps and trees as text, whatever the trace holds."""

import json
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from ddviz.check.views import StepView
from ddviz.errors import BadValueError
from ddviz.trace import Recorder, Trace, load
from ddviz.trace.render import _walk, as_json, local_path, render_step, render_summary, statuses
from ddviz.trace.schema import Accept, Batch, Retrieve, Step, Tree
from ddviz.viewer.shape import shape_of
from tests.trace.runs import TEXTS, header, step, write_run


def shown(renderable: RenderableType, width: int = 100) -> str:
    console = Console(width=width, highlight=False, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return load(write_run(tmp_path / "run.ddviz"))


def one_step(tmp_path: Path, made: Step, texts: dict[int, bytes] = TEXTS, **changes: object) -> Trace:
    with Recorder(tmp_path / "one.ddviz", header(**changes), texts.get, overwrite=True) as recorder:
        recorder.step(made)
    return load(recorder.path)


def test_a_step_is_drawn_as_a_tree(trace: Trace) -> None:
    assert shown(render_step(trace, 0)) == (
        "step 0 · prefix 7 · 4 nodes · accept length 2 · sampled decision · 11.27 ms\n"
        "\n"
        "token       node  rank  score  draft  target\n"
        "·the           0                              root\n"
        "├─ ·cat        1     0  -0.51  0.600   0.800  ✓ accepted\n"
        "│  ├─ ·sat     2     0  -0.87  0.700   0.300  ✗ rejected\n"
        "│  └─ ·is                                     + bonus\n"
        "└─ ·dog        3     1  -1.20  0.300   0.100  · unreached\n"
        "\n"
        "emitted  ·cat ·is"
    )


def test_the_summary_has_facts_and_a_line_per_step(trace: Trace) -> None:
    text = shown(render_summary(trace))
    facts = {line[:9].strip(): line[11:] for line in text.splitlines()[:11]}
    assert facts["engine"] == "toy · 1 · cpu"
    assert facts["algorithm"] == "DDTREE · block size 3 · budget 3 · topk_cap 2"
    assert facts["sampling"] == "temperature 1 · seed 5"
    assert facts["prompt"] == "2 tokens"
    assert facts["output"] == "7 tokens in 3 steps, accept length 2.00"
    assert facts["finished"] == "length"
    assert facts["note"] == "made by hand"
    assert "step  prefix  nodes  accept length     ms  emitted" in text
    assert "   1       9      4              2  11.27   cat is" in text
    assert "! steps 3 to 3 were not kept: queue full" in text


def test_a_greedy_run_says_so(tmp_path: Path) -> None:
    from ddviz.trace.schema import SamplingParams

    for sampling in (SamplingParams(), SamplingParams(temperature=0.8, top_k=1)):
        assert "greedy" in shown(render_summary(one_step(tmp_path, step(), sampling=sampling)))
    sampling = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=0)
    text = shown(render_summary(one_step(tmp_path, step(), sampling=sampling)))
    assert "temperature 0.8 · top_k 40 · top_p 0.9 · seed 0" in text


def test_without_an_end_or_with_damage_the_summary_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.ddviz")
    path.write_bytes(path.read_bytes()[:-5])
    text = shown(render_summary(load(path)), width=200)
    assert "no end recorded" in text
    assert "! the last event is cut off at byte" in text


def test_a_trace_without_steps(tmp_path: Path) -> None:
    Recorder(tmp_path / "run.ddviz", header(), TEXTS.get).close()
    trace = load(tmp_path / "run.ddviz")
    assert "0 tokens in 0 steps\n" in shown(render_summary(trace))
    assert json.loads(as_json(trace))["accept_length"] is None
    with pytest.raises(BadValueError, match="there is no step 0; it has no steps"):
        render_step(trace, 0)


@pytest.mark.parametrize("i", [-1, 3, 10**9])
def test_a_step_that_is_not_there(trace: Trace, i: int) -> None:
    with pytest.raises(BadValueError, match=rf"run\.ddviz: there is no step {i}; its steps are 0 to 2"):
        render_step(trace, i)
    with pytest.raises(BadValueError):
        as_json(trace, i)


def test_json_of_a_step_is_the_recorded_one_with_labels_and_statuses(trace: Trace) -> None:
    content = json.loads(as_json(trace, 1))
    assert content["step"]["tree"] == {
        "tokens": [10, 20, 30, 21],
        "parents": [-1, 0, 1, 0],
        "ranks": [0, 0, 0, 1],
        "scores": [0.0, -0.5108256, -0.86750054, -1.2039728],
    }
    assert content["labels"] == ["·the", "·cat", "·sat", "·dog"]
    assert content["statuses"] == ["accepted", "accepted", "rejected", "unreached"]


def test_json_of_a_trace(trace: Trace) -> None:
    content = json.loads(as_json(trace))
    assert content["header"]["target"] == "toy-target"
    assert content["accept_length"] == 2
    assert content["end"]["finish_reason"] == "length"
    assert content["damage"] is None
    assert content["dropped"][0]["reason"] == "queue full"
    assert content["steps"][2] == {
        "index": 2,
        "prefix_len": 11,
        "n": 4,
        "accept_length": 2,
        "ms": pytest.approx(11.266),
        "emitted": [20, 32],
        "text": " cat is",
    }


HOSTILE = {
    10: b"[bold red]x[/bold red][/]",
    20: b"[link=https://example.com]y[/link]",
    30: b"\x1b[2J\x1b]0;title\x07",
    21: "\u202egnp.exe".encode(),
    32: b"z" * 500 + b"\n",
}


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    trace = one_step(
        tmp_path, step(), HOSTILE, target="[red]\x1b[31m\u202e", notes=["[/]"], request_id="\x1b[2J"
    )
    for text in (shown(render_step(trace, 0), 160), shown(render_summary(trace), 160)):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    tree = shown(render_step(trace, 0), 160)
    assert "[bold·red]x[/bold·red][/]" in tree
    assert "├─ [link=https://example.com]y[/link]" in tree.replace("└", "├")
    assert "⟨U+001B⟩[2J" in tree
    assert "z" * 39 + "…" in tree
    assert "z" * 41 not in tree
    summary = shown(render_summary(trace), 160)
    assert "[red]⟨U+001B⟩[31m⟨U+202E⟩" in summary
    assert "[/]" in summary


def test_a_character_over_two_steps_is_whole_in_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "run.ddviz"
    with Recorder(path, header(), {20: b" \xf0\x9f", 32: b"\x98\x80"}.get) as recorder:
        first, second = step(0), step(1)
        first.emitted, second.emitted = [20], [32]
        recorder.step(first)
        recorder.step(second)
    assert [s["text"] for s in json.loads(as_json(load(path)))["steps"]] == [" ", "😀"]


# odd and damaged steps


def bare(tokens: list[int], parents: list[int], index: list[int], **parts: object) -> Step:
    accept = Accept(index=index, num_accepted=len(index) - 1, predicts=[32], bonus=32, kernel="greedy")
    return Step(
        index=0, prefix_len=5, tree=Tree(tokens=tokens, parents=parents), accept=accept, emitted=[32], **parts
    )  # type: ignore[arg-type]


def test_flat_indices_become_local() -> None:
    batch = Batch(id=1, size=3, row=2, q_len=8)
    assert local_path(bare([1, 2, 3], [-1, 0, 1], [16, 17, 18], batch=batch)) == [0, 1, 2]
    retrieve = Retrieve(index=[16, 17, 18], next_token=[1, 2, -1], next_sibling=[-1, -1, -1])
    assert local_path(bare([1, 2, 3], [-1, 0, 1], [16, 17], retrieve=retrieve)) == [0, 1]
    assert local_path(bare([1, 2, 3], [-1, 0, 1], [0, 2, 9, -4])) == [0, 2]
    assert local_path(bare([1, 2, 3], [-1, 0, 1], [16, 17])) == [0, 1]


@pytest.mark.parametrize("has_batch", [True, False])
@pytest.mark.parametrize("has_links", [True, False])
def test_terminal_viewer_and_doctor_read_the_same_path(has_batch: bool, has_links: bool) -> None:
    """Whatever of batch and links was recorded, row 2 of T = 8 begins at flat index 16."""
    parts: dict[str, object] = {}
    if has_batch:
        parts["batch"] = Batch(id=1, size=3, row=2, q_len=8)
    if has_links:
        parts["retrieve"] = Retrieve(
            index=list(range(16, 24)), next_token=[1, 2, *[-1] * 6], next_sibling=[-1] * 8
        )
    step = bare([1, 2, 3], [-1, 0, 1], [16, 17], **parts)
    assert step.flat_root == 16
    assert local_path(step) == [0, 1]
    assert shape_of(step, [], [[], [], []]).path == [0, 1]
    assert StepView(header(), step).path == [0, 1]


def test_a_step_without_any_flat_index_begins_at_0() -> None:
    links = Retrieve(index=[], next_token=[], next_sibling=[])
    assert bare([1], [-1], [], retrieve=links).flat_root == 0


def test_without_links_statuses_follow_from_the_parents() -> None:
    made = bare([10, 20, 21, 30, 31], [-1, 0, 0, 1, 2], [0, 2])
    assert statuses(made) == ["accepted", "rejected", "accepted", "unreached", "rejected"]


def test_recorded_links_count_where_they_differ_from_the_parents() -> None:
    """The kernel went by the links: node 2 came first, so node 1 was never examined."""
    links = Retrieve(index=[0, 1, 2], next_token=[2, -1, -1], next_sibling=[-1, -1, 1])
    assert statuses(bare([10, 20, 21], [-1, 0, 0], [0, 2], retrieve=links)) == [
        "accepted",
        "unreached",
        "accepted",
    ]


@pytest.mark.parametrize(
    "made",
    [
        bare([], [], []),
        bare([10], [-1], [0]),
        bare([10, 20, 21], [], [0, 1]),
        bare([10, 20, 21], [-1, 2, 1], [0, 1]),
        bare([10, 20, 21], [5, 9, -7], [0, 99]),
        bare([10, 20], [-1, 0], [0], retrieve=Retrieve(index=[], next_token=[10**30], next_sibling=[])),
        bare([10, 20], [-1, 0], [], retrieve=Retrieve(index=[3], next_token=[1, 1], next_sibling=[1, 1])),
    ],
    ids=["empty", "root", "no parents", "circle", "nowhere", "links", "loop"],
)
def test_a_damaged_step_is_drawn_as_far_as_it_goes(tmp_path: Path, made: Step) -> None:
    trace = one_step(tmp_path, made)
    assert shown(render_step(trace, 0)).startswith("step 0")
    assert shown(render_summary(trace))
    assert len(json.loads(as_json(trace, 0))["statuses"]) == len(made.tree.tokens)


def test_nodes_without_a_place_are_told(tmp_path: Path) -> None:
    text = shown(render_step(one_step(tmp_path, bare([10, 20, 21], [-1, 2, 0], [0])), 0), 200)
    assert "! 1 nodes have no parent before them and hang below the root; run: ddviz doctor " in text


def test_lists_too_short_leave_cells_empty(tmp_path: Path) -> None:
    made = step()
    made.tree.ranks, made.tree.scores = [0], [None]
    assert made.target is not None
    made.target.filtered = None
    made.target.raw.node_probs = [None, 0.8]
    assert "✓ accepted" in shown(render_step(one_step(tmp_path, made), 0))


def test_a_tree_of_the_largest_size_is_drawn(tmp_path: Path) -> None:
    """1,025 nodes in chains of 16."""
    parents = [-1, *(0 if node % 16 == 1 else node - 1 for node in range(1, 1025))]
    text = shown(render_step(one_step(tmp_path, bare(list(range(1025)), parents, [0])), 0), 200)
    assert text.count("unreached") + text.count("rejected") == 1024


def test_a_deep_tree_is_drawn_to_depth_100_and_a_note_counts_the_rest(tmp_path: Path) -> None:
    drawn = one_step(tmp_path, bare(list(range(101)), [-1, *range(100)], [0]))
    assert "not drawn" not in shown(render_step(drawn, 0), 2000)
    trace = one_step(tmp_path, bare(list(range(300)), [-1, *range(299)], [0]))
    text = shown(render_step(trace, 0), 2000)
    assert text.count("unreached") == 99 and "! 199 nodes are not drawn" in text
    assert len(json.loads(as_json(trace, 0))["statuses"]) == 300


def test_a_wide_tree_is_cut_beside_its_accepted_path(tmp_path: Path) -> None:
    """Root, 3,000 children, below the last of them the bonus."""
    trace = one_step(tmp_path, bare(list(range(3001)), [-1, *[0] * 3000], [0, 3000]))
    text = shown(render_step(trace, 0))
    assert "! 952 nodes are not drawn" in text  # 3,001 less 2,048 and the accepted one
    assert text.count("✓ accepted") == 1 and text.count("+ bonus") == 1


def test_the_work_of_a_drawing_grows_with_its_nodes_alone(tmp_path: Path) -> None:
    """Characters in front of the nodes, the part that was quadratic: 38 million for a chain of 5,000."""
    chain = bare(list(range(5000)), [-1, *range(4999)], [0])
    comb = bare(list(range(5000)), [-1, *(max(0, i - i % 2 - 1) for i in range(4999))], [0])
    for made in (chain, comb):
        rows = list(_walk(made))
        assert len(rows) <= 2050
        assert sum(len(lines) for _, lines, _ in rows) < 2050 * 3 * 101
