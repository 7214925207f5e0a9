"""Events survive the file, floats survive the text."""

import json

import msgspec
import numpy as np
import pytest

from ddviz.trace import display_list, display_rows, float32, float32_list
from ddviz.trace.schema import AnyEvent, Event, Header, SamplingParams
from tests.trace.runs import EVENTS, header, step

decoder = msgspec.json.Decoder(AnyEvent)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_round_trips(event: Event) -> None:
    assert decoder.decode(msgspec.json.encode(event)) == event


def test_the_events_above_are_all_there_are() -> None:
    assert {type(event) for event in EVENTS} == set(AnyEvent.__args__)


def test_a_line_names_its_event_first() -> None:
    for event in EVENTS:
        assert msgspec.json.encode(event).startswith(b'{"event":"')


def test_what_is_absent_takes_no_room() -> None:
    bare = step()
    bare.target = bare.sampling = bare.draft = bare.mask = bare.commit = bare.batch = None
    keys = json.loads(msgspec.json.encode(bare)).keys()
    assert not keys & {"target", "sampling", "draft", "mask", "commit", "batch"}


def test_a_header_spells_out_its_defaults() -> None:
    """Whoever reads the line with jq need not know ours."""
    line = json.loads(msgspec.json.encode(header(sampling=SamplingParams())))
    assert set(line) == {"event", *Header.__struct_fields__}
    assert set(line["sampling"]) == set(SamplingParams.__struct_fields__)


def test_unknown_fields_are_ignored() -> None:
    line = json.loads(msgspec.json.encode(step()))
    line["tree"]["colour"] = "green"
    line["weather"] = {"wind": [1, 2]}
    assert decoder.decode(json.dumps(line)) == step()


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"prefill"}',
        '{"event":"prefill","token":"10"}',
        '{"event":"prefill","token":1.5}',
        '{"event":"tokens","bytes":{"x":"AA=="}}',
        '{"event":"tokens","bytes":{"1":"not base64"}}',
        '{"event":"end","finish_reason":"bored","output_ids":[],"steps":0}',
    ],
)
def test_wrong_types_are_refused(line: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(line)


def through_the_file(values: list[float | None]) -> list[float | None]:
    return msgspec.json.decode(msgspec.json.encode(values), type=list[float | None])


def kinds_of_float32() -> np.ndarray:
    """Random bit patterns (so: every exponent), and the edges."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    info = np.finfo(np.float32)
    edges = [
        0,
        -0.0,
        info.tiny,
        info.smallest_subnormal,
        info.max,
        info.min,
        info.eps,
        1 - info.epsneg,
        0.1,
        1 / 3,
    ]
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    return np.concatenate(
        [bits.view(np.float32), np.array(edges, np.float32), powers, np.nextafter(powers, 0)]
    )


def test_float32_round_trips_bit_for_bit() -> None:
    values = kinds_of_float32()
    read = through_the_file(float32_list(values))
    finite = np.isfinite(values)
    assert [x is None for x in read] == (~finite).tolist(), "NaN and infinities are null, nothing else is"
    back = np.array([x for x in read if x is not None], np.float32)
    assert back.tobytes() == values[finite].tobytes()


def test_float32_is_written_short() -> None:
    assert msgspec.json.encode(float32_list([0.1, 1e-7, 16777216, -2.5])) == b"[0.1,1e-7,16777216.0,-2.5]"
    assert float32(0.1) == 0.1
    assert float32(np.float32("nan")) is None
    assert float32_list([]) == []


def test_display_floats_carry_five_digits() -> None:
    assert display_list([1 / 3, -2 / 3e-9, 123456.7, 0, 1]) == [0.33333, -666670000.0, 123460.0, 0, 1]
    assert display_list([1 / 3], digits=2) == [0.33]
    assert display_list([float("nan"), float("inf"), -float("inf"), 1.5]) == [None, None, None, 1.5]
    assert display_list([]) == []


def test_display_floats_are_right_at_any_size() -> None:
    """Five digits, and no further off than half of the fifth."""
    random = np.random.default_rng(1)
    values = np.concatenate(
        [
            10.0 ** random.uniform(-320, 308, 3000),
            -random.random(3000),
            [5e-324, 1.7e308, 99999.5, 1e22, 1e-22],
        ]
    )
    for value, shown in zip(values.tolist(), display_list(values), strict=True):
        assert shown is not None
        assert shown == float(f"{shown:.5g}")
        assert abs(shown - value) <= max(abs(value) * 5.0001e-5, 5e-324)


def test_display_rows() -> None:
    assert display_rows([[1 / 3, 2], [3, float("nan")]]) == [[0.33333, 2], [3, None]]
    assert display_rows(np.zeros((2, 0))) == [[], []]
    assert display_rows(np.zeros((0, 4))) == []
