"""Two traces aligned by token position."""

from hypothesis import given
from hypothesis import strategies as st

from ddviz.analysis.diff import Stop, diff, side_of
from ddviz.trace import Recorder, TokenTable, load
from ddviz.trace.schema import End, EngineInfo, Header, Prefill, Prompt, SamplingParams
from tests.viewer.fixtures import write_trace
from tests.viewer.test_view import chain


def trace_of(tmp_path, *steps, name="t", first=0, words=b"abcdefgh", prompt="hi"):
    header = Header(
        created="2026-01-01T00:00:00+00:00",
        engine=EngineInfo(name="hand", version="1"),
        algorithm="DDTREE",
        target="target",
        sampling=SamplingParams(),
        request_id=name,
    )
    path = tmp_path / f"{name}.ddviz"
    with Recorder(path, header, lambda token: words[token : token + 1], overwrite=True) as recorder:
        recorder.prompt([1], prompt)
        recorder.prefill(Prefill(token=first))
        for tokens in steps:
            recorder.step(chain(*tokens))
        recorder.end(End(finish_reason="length", output_ids=[], steps=len(steps)))
    return load(path)


def test_the_example_of_the_docstring(tmp_path):
    a = trace_of(tmp_path, (1, 2), (3, 4, 5), name="a")
    b = trace_of(tmp_path, (1,), (2, 3), (6,), name="b")
    found = diff(a, b)
    assert found.stops == [Stop(1, 0, 0), Stop(2, 0, 1), Stop(3, 1, 1), Stop(4, 1, 2)]
    assert (found.parts_at, found.common) == (4, 4)
    assert (found.a.accept_lengths, found.b.accept_lengths) == ([2, 3], [1, 2, 1])


def test_a_text_that_only_ends_earlier_parts_nowhere(tmp_path):
    long, short = trace_of(tmp_path, (1, 2), (3,), name="a"), trace_of(tmp_path, (1,), name="b")
    found = diff(long, short)
    assert (found.parts_at, found.common) == (None, 2)
    assert found.stops == [Stop(1, 0, 0), Stop(3, 1, 0)]  # the shorter one stays at its last step


def test_texts_may_part_at_the_first_token(tmp_path):
    found = diff(trace_of(tmp_path, (1,), name="a"), trace_of(tmp_path, (1,), first=2, name="b"))
    assert (found.parts_at, found.common) == (0, 0)


def test_other_ids_for_the_same_bytes_are_the_same_text(tmp_path):
    a = trace_of(tmp_path, (1, 2), name="a", words=b"abc")
    b = trace_of(tmp_path, (0, 2), name="b", first=1, words=b"bac")
    assert diff(a, b).parts_at is None


def test_another_prompt_is_said(tmp_path):
    a, b = trace_of(tmp_path, (1,), name="a"), trace_of(tmp_path, (1,), name="b", prompt="ho")
    assert not diff(a, b).same_prompt
    assert diff(a, a).same_prompt


def test_the_token_of_a_later_prefill_stands_before_its_step(tmp_path):
    trace = trace_of(tmp_path, (1, 2), (4,))
    trace.prefills.append((1, Prefill(token=3)))
    side = side_of(trace)
    assert (side.tokens, side.starts) == ([0, 1, 2, 3, 4], [1, 4])


def test_a_trace_without_steps_has_no_stops(tmp_path):
    empty = trace_of(tmp_path, name="a")
    found = diff(empty, empty)
    assert (found.stops, found.parts_at, found.common) == ([], None, 1)


def test_recorded_tokens_are_those_of_the_trace(tmp_path):
    trace = write_trace(tmp_path / "t.ddviz")
    assert side_of(trace).tokens == trace.output_ids


class Fake:
    """As much of a trace as diff reads."""

    def __init__(self, first, steps):
        self.prompt, self.tokens = Prompt(token_ids=[], text=""), TokenTable()
        self.prefills = [(0, Prefill(token=first))]
        self.steps = [chain(*tokens) for tokens in steps]


RUNS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=12)


@given(RUNS, RUNS)
def test_every_token_is_found_in_the_step_that_emitted_it(one, other):
    a, b = Fake(0, one), Fake(0, other)
    found = diff(a, b)
    for side, steps in ((found.a, one), (found.b, other)):
        position = 1
        for i, tokens in enumerate(steps):
            for token in tokens:
                assert side.step_at(position) == i and side.tokens[position] == token
                position += 1
    flat = [[0, *(token for tokens in steps for token in tokens)] for steps in (one, other)]
    naive = next((p for p, (x, y) in enumerate(zip(*flat, strict=False)) if x != y), None)
    assert found.parts_at == naive
    positions = [stop.position for stop in found.stops]
    assert positions == sorted(set(positions))
