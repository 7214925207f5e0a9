"""The pages on the format say what the code does."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from ddviz.trace import docs, float32_list, load
from ddviz.trace.frames import decompress_frame, next_frame
from ddviz.trace.schema import AnyEvent
from ddviz.tree import (
    accepted_paths,
    build_tree,
    compile_ddtree_retrieve,
    node_positions,
    pack_mask,
    sample_tree_paths,
    tree_mask,
)
from tests.trace.runs import EVENTS, write_run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((DOCS / "trace-schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_generated_files_are_current() -> None:
    assert docs.main(["--check"]) == 0, "run: python -m ddviz.trace.docs"


def test_check_tells_stale_from_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    assert docs.main(["--check"]) == 1
    assert "docs/trace-format.md is not current; run: python -m ddviz.trace.docs" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0


def test_every_field_of_every_event_and_part_is_in_the_page() -> None:
    page = (DOCS / "trace-format.md").read_text()
    documented = {table.name: [field.name for field in table.fields] for table in docs.tables()}
    structs = structs_of(AnyEvent.__args__)
    assert set(documented) == {struct.__name__ for struct in structs}
    for struct in structs:
        assert documented[struct.__name__] == list(struct.__struct_fields__)
        title = struct.__struct_config__.tag
        section = page.split(f"### `{title}`\n" if title else f"### {struct.__name__}\n")[1].split("\n#")[0]
        for name in struct.__struct_fields__:
            assert f"| `{name}` |" in section


def structs_of(kinds: tuple[type, ...]) -> set[Any]:
    """Every Struct that the events hold, at any depth."""
    found: set[Any] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found.add(kind)
            waiting += [field.type for field in msgspec.structs.fields(kind)]
        else:
            waiting += getattr(kind, "__args__", ())
    return found


def test_links_of_the_pages_lead_somewhere() -> None:
    for name in ("trace-format.md", "recorder.md"):
        page = (DOCS / name).read_text()
        headings = {
            h.lower().strip("`").replace(" ", "-") for h in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        }
        for link in re.findall(r"\]\(([^)]+)\)", page):
            assert link.removeprefix("#") in headings if link.startswith("#") else (DOCS / link).exists()


def test_every_line_of_a_real_trace_fits_the_json_schema(
    tmp_path: Path, validator: jsonschema.Draft202012Validator
) -> None:
    data = write_run(tmp_path / "run.ddviz").read_bytes()
    position, events = 0, []
    while position < len(data):
        frame = next_frame(data, position)
        line = json.loads(decompress_frame(data, frame))
        validator.validate(line)
        events.append(line["event"])
        position += frame.size
    assert set(events) == {"header", "prompt", "prefill", "tokens", "step", "dropped", "end"}


def test_the_json_schema_refuses_what_the_reader_refuses(validator: jsonschema.Draft202012Validator) -> None:
    for event in EVENTS:
        line = json.loads(msgspec.json.encode(event))
        assert validator.is_valid(line)
        assert not validator.is_valid(line | {"event": "weather"})
    assert not validator.is_valid({"event": "prefill", "token": "10"})
    assert not validator.is_valid({"event": "step", "index": 0})


def test_the_literal_step_is_in_the_page() -> None:
    page = (DOCS / "trace-format.md").read_text()
    literal = page.split("```json\n")[1].split("```")[0]
    assert msgspec.json.decode(literal, type=AnyEvent) == docs.example_step()


def test_the_literal_step_is_what_the_algorithm_does() -> None:
    step = docs.example_step()
    logprobs = np.log(np.array([[0.6, 0.3], [0.7, 0.2]], np.float32))
    tree = build_tree(logprobs, np.array([[20, 21], [30, 31]]), root_token=10, budget=3, topk_cap=2)
    assert tree.tokens.tolist() == step.tree.tokens
    assert tree.parents.tolist() == step.tree.parents
    assert tree.ranks.tolist() == step.tree.ranks
    assert float32_list(tree.scores) == step.tree.scores
    links = compile_ddtree_retrieve(tree.parents)
    assert step.retrieve is not None
    assert links.index.tolist() == step.retrieve.index
    assert links.next_token.tolist() == step.retrieve.next_token
    assert links.next_sibling.tolist() == step.retrieve.next_sibling
    assert node_positions(step.prefix_len, tree.depths).tolist() == step.positions
    assert pack_mask(tree_mask(tree.parents)) == step.mask

    probs = np.zeros((1, 4, 50), np.float32)
    probs[0, 0, [20, 21, 1, 2]] = 0.8, 0.1, 0.05, 0.05
    probs[0, 1, [32, 30, 31, 40]] = 0.5, 0.3, 0.1, 0.1
    assert step.target is not None
    assert step.target.raw.node_probs == float32_list([np.nan, *probs[0, [0, 1, 0], tree.tokens[1:]]])
    margins = np.log([0.8 / 0.1, 0.5 / 0.3, 0.6 / 0.3, 0.9 / 0.05])
    assert step.target.raw.margin == pytest.approx(margins, abs=1e-6)
    assert step.sampling is not None
    outcome = sample_tree_paths(
        candidates=tree.tokens[None],
        retrieve_index=links.index[None],
        next_token=links.next_token[None],
        next_sibling=links.next_sibling[None],
        target_probs=probs,
        coins=np.array([step.sampling.coins], np.float32),
        final_coins=np.array([step.sampling.final_coin], np.float32),
        max_path_len=3,
    )
    (path,) = accepted_paths(outcome, 4)
    assert path.path.tolist() == step.accept.index
    assert path.emitted.tolist() == step.accept.predicts == step.emitted
    mass = outcome.residual_sum[0], outcome.bonus_cdf[0], outcome.bonus_prob[0]
    assert (step.sampling.residual_sum, step.sampling.bonus_cdf, step.sampling.bonus_prob) == pytest.approx(
        mass
    )


def test_the_engine_in_the_recorder_page_runs_and_its_trace_is_good(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", (DOCS / "recorder.md").read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    trace = load(tmp_path / "toy.ddviz")
    assert trace.damage is None
    assert trace.end is not None
    assert len(trace.steps) == trace.end.steps
    assert trace.prompt is not None
    text = "".join(trace.tokens.pieces([*trace.prompt.token_ids, *trace.output_ids]))
    assert text == "Q: who sat on the mat? A: the cat sat on the mat, I think."
    assert {step.accept.num_accepted for step in trace.steps} == {0, 1, 2}
    assert all(set(step.times_us) == {"draft", "verify"} for step in trace.steps)
    position = len(trace.prompt.token_ids)
    root = trace.prefills[0][1].token
    for step in trace.steps:
        assert (step.prefix_len, step.tree.tokens[0]) == (position, root)
        position, root = position + len(step.emitted), step.accept.bonus


def test_the_recorder_page_names_every_public_method() -> None:
    from ddviz.trace import Recorder

    page = (DOCS / "recorder.md").read_text()
    for name in [name for name in vars(Recorder) if not name.startswith("_")]:
        assert re.search(rf"\b{name}\b", page), f"docs/recorder.md does not mention {name}"
