"""The reference implementation's tree traces: what they hold is in the trace, what they lack stays absent.

prompt 5 6 | 7   root of round 0, the prefill token

round 0:  7 ── 8 ── 9      accepted 8 and 9, then the target's own 11
          └─── 4
round 1:  11 ── 3          nothing accepted, then 12
round 2:  12 ── 13 ── 2    accepted both, 2 ends the text
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddviz.check.doctor import examine
from ddviz.errors import TraceError
from ddviz.trace import load
from ddviz.trace.importers import Reference, Round, RoundTree, import_reference


def reference(**changes: Any) -> dict[str, Any]:
    rounds = [
        {
            "accepted_indices": [0, 1, 3],
            "tree": {"node_token_ids": [8, 4, 9], "node_depths": [1, 1, 2], "parents": [-1, 0, 0, 1]},
        },
        {
            "accepted_indices": [0],
            "tree": {"node_token_ids": [3], "node_depths": [1], "parents": [-1, 0]},
        },
        {
            "accepted_indices": [0, 1, 2],
            "tree": {"node_token_ids": [13, 2], "node_depths": [1, 2], "parents": [-1, 0, 1]},
        },
    ]
    return {
        "round_trees": rounds,
        "output_ids": [5, 6, 7, 8, 9, 11, 12, 13, 2, 99],
        "num_input_tokens": 2,
    } | changes


def imported(tmp_path: Path, content: object) -> Any:
    source = tmp_path / "rounds.json"
    source.write_text(content if isinstance(content, str) else json.dumps(content))
    import_reference(source, tmp_path / "run.ddviz", overwrite=True)
    return load(tmp_path / "run.ddviz")


def test_a_round_becomes_a_step(tmp_path: Path) -> None:
    trace = imported(tmp_path, reference())
    assert trace.damage is None
    assert trace.prompt.token_ids == [5, 6]
    assert [prefill.token for _, prefill in trace.prefills] == [7]
    first, second, third = trace.steps
    assert first.tree.tokens == [7, 8, 4, 9]
    assert first.tree.parents == [-1, 0, 0, 1]
    assert first.positions == [2, 3, 3, 4]
    assert first.prefix_len == 2
    assert (first.accept.index, first.accept.num_accepted, first.accept.bonus) == ([0, 1, 3], 2, 11)
    assert first.emitted == first.accept.predicts == [8, 9, 11]
    assert (second.prefix_len, second.tree.tokens, second.emitted) == (5, [11, 3], [12])
    assert (third.prefix_len, third.tree.tokens, third.emitted) == (6, [12, 13, 2], [13, 2, 99])
    assert trace.output_ids == [7, 8, 9, 11, 12, 13, 2, 99]
    assert not trace.dropped


def test_the_example_in_the_docs_is_imported(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text("utf-8")
    examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 1
    trace = imported(tmp_path, examples[0])
    assert [step.emitted for step in trace.steps] == [[8, 9, 11], [12]]
    assert b"".join(trace.tokens[token] for token in trace.output_ids) == b" sat on the mat."
    assert (trace.header.budget, trace.header.target) == (3, "Qwen/Qwen3-4B")
    assert not trace.dropped and examine(trace) == []
    keys = set(re.findall(r"`(?:round_trees\[i\]\.)?(?:tree\.)?([a-z_]+)`", page))
    read = {*Reference.__struct_fields__, *Round.__struct_fields__, *RoundTree.__struct_fields__} - {"tree"}
    assert read - keys == set()


def test_what_the_source_lacks_is_absent_and_said(tmp_path: Path) -> None:
    trace = imported(tmp_path, reference())
    step = trace.steps[0]
    for part in (step.draft, step.retrieve, step.slots, step.mask, step.target, step.sampling, step.commit):
        assert part is None
    assert step.tree.scores is step.tree.ranks is step.batch is None
    assert step.times_us == {}
    header = trace.header
    assert (header.score_kind, header.level, header.target) == ("none", "light", "unknown")
    assert header.draft is header.block_size is header.budget is header.topk_cap is None
    assert trace.end.finish_reason == "unknown"
    assert len(trace.tokens) == 0
    notes = "\n".join(header.notes)
    for sentence in ("no scores, ranks", "kernel greedy", "why the run ended", "temperature", "token texts"):
        assert sentence in notes


def test_what_the_source_adds_is_taken_over(tmp_path: Path) -> None:
    more = {
        "acceptance_lengths": [3, 1, 3],
        "block_size": 16,
        "tree_budget": 64,
        "temperature": 0.7,
        "target": "big",
        "draft": "small",
        "token_text": {"5": "Hi", "6": " there", "7": " I"},
        "time_per_output_token": 0.1,
    }
    trace = imported(tmp_path, reference(**more))
    header = trace.header
    assert (header.block_size, header.budget, header.target, header.draft) == (16, 64, "big", "small")
    assert header.sampling.temperature == 0.7
    assert trace.prompt.text == "Hi there"
    assert trace.tokens.label(7) == "·I"
    assert not any("temperature is not" in note or "token texts" in note for note in header.notes)


def test_a_batch_of_one_is_unwrapped(tmp_path: Path) -> None:
    trace = imported(tmp_path, reference(output_ids=[reference()["output_ids"]]))
    assert len(trace.steps) == 3


@pytest.mark.parametrize("cut", [7, 8, 9])
def test_a_last_round_cut_off_at_a_stop_token_is_dropped(tmp_path: Path, cut: int) -> None:
    """output_ids ends inside round 2: after its root, its first token, its second."""
    trace = imported(tmp_path, reference(output_ids=reference()["output_ids"][:cut]))
    assert len(trace.steps) == 2
    assert [(d.first, d.last) for d in trace.dropped] == [(2, 2)]
    assert "its bonus is in no file" in trace.dropped[0].reason
    assert trace.output_ids == reference()["output_ids"][2:cut]
    assert trace.end.steps == 3


def test_a_tree_with_a_fault_is_imported_as_it_is(tmp_path: Path) -> None:
    """A wrong parent or depth is what one looks for: no importer mends it."""
    content = reference()
    content["round_trees"][0]["tree"] |= {"parents": [-1, 3, 0, 1], "node_depths": [1, 5, 2]}
    step = imported(tmp_path, content).steps[0]
    assert step.tree.parents == [-1, 3, 0, 1]
    assert step.positions == [2, 3, 7, 4]


def with_round(number: int, **changes: Any) -> dict[str, Any]:
    content = reference()
    chosen = content["round_trees"][number]
    for key, value in changes.items():
        (chosen if key in chosen else chosen["tree"])[key] = value
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (
            reference()["round_trees"],
            "a bare list of rounds, which names neither their roots nor bonuses; save an",
        ),
        ({"rounds": []}, "missing required field `round_trees`"),
        (reference(round_trees=None), "generate with save_tree_traces=True"),
        (5, "Expected `object`, got `int`"),
        (reference(output_ids=None), r"Expected `array`, got `null` - at `\$\.output_ids`"),
        (reference(output_ids=[[1, 2], [3, 4]]), "output_ids is a batch of 2"),
        (reference(num_input_tokens=10), "num_input_tokens is 10, output_ids holds 10"),
        (reference(num_input_tokens=-1), "num_input_tokens is -1"),
        (reference(num_input_tokens=1), r"round_trees\[0\]: accepted token 1 is 8, output_ids has 7"),
        (reference(acceptance_lengths=[3, 1, 2]), "acceptance_lengths differ"),
        (
            with_round(1, accepted_indices=[0, 2]),
            r"round_trees\[1\]\.accepted_indices: holds 2, .* from 0 to 1",
        ),
        (with_round(1, accepted_indices=[]), r"\[\] must start with the root"),
        (with_round(2, accepted_indices=[1, 2]), "must start with the root"),
        (
            with_round(0, parents=[-1, 0, 0]),
            r"round_trees\[0\]\.tree: 3 parents, 3 node_token_ids, 3 node_depths",
        ),
        (with_round(2, node_depths=[1]), "must be n, n - 1 and n - 1"),
        (
            with_round(2, node_token_ids=[13, "2"]),
            r"got `str` - at `\$\.round_trees\[2\]\.tree\.node_token_ids\[1\]`",
        ),
        (with_round(0, accepted_indices=[0, 2]), r"accepted token 1 is 4, output_ids has 8 in its place"),
        (reference(output_ids=[5, 6, 7, 8, 9]), r"round_trees\[0\]: output_ids ends inside it, yet 2 rounds"),
        (
            reference(output_ids=[*reference()["output_ids"], 1, 1]),
            "holds 2 tokens that no round accounts for",
        ),
    ],
)
def test_a_malformed_source_is_refused_and_nothing_is_written(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(TraceError, match=message) as refused:
        imported(tmp_path, content)
    assert str(refused.value).startswith(str(tmp_path / "rounds.json"))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run.ddviz").exists()


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="can't read it"):
        import_reference(tmp_path / "gone.json", tmp_path / "run.ddviz")
    with pytest.raises(TraceError, match="can't read it"):
        import_reference(tmp_path, tmp_path / "run.ddviz")


def test_an_existing_trace_is_kept(tmp_path: Path) -> None:
    (tmp_path / "rounds.json").write_text(json.dumps(reference()))
    (tmp_path / "run.ddviz").write_text("mine")
    with pytest.raises(TraceError, match="exists already"):
        import_reference(tmp_path / "rounds.json", tmp_path / "run.ddviz")
    assert (tmp_path / "run.ddviz").read_text() == "mine"
