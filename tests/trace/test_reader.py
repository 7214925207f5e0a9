"""Whatever happened to the file: whole steps before the damage, never a wrong one."""

import base64
import json
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard

from ddviz.errors import TraceError
from ddviz.trace import Recorder, Trace, TraceFollower, follow, frames, load
from ddviz.trace.frames import DamageError, compress_line, decompress_frame, new_compressor, next_frame
from ddviz.trace.schema import Prefill
from tests.trace.runs import TEXTS, header, step, write_run


def frame(line: object) -> bytes:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return compress_line(raw, new_compressor())


def streamed(text: bytes) -> bytes:
    """Its size is not known when the frame begins, so the frame does not name it."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return compressor.compress(text) + compressor.flush()


def header_line(**changes: object) -> dict[str, object]:
    return json.loads(msgspec.json.encode(header())) | changes  # type: ignore[no-any-return]


def frame_ends(data: bytes) -> list[int]:
    ends, position = [], 0
    while position < len(data):
        position += next_frame(data, position).size
        ends.append(position)
    return ends


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run.ddviz")


def assert_a_true_part_of(part: Trace, whole: Trace) -> None:
    """What was read is what the whole file holds, as far as it goes."""
    assert part.header == whole.header
    assert part.prompt in (None, whole.prompt)
    assert part.prefills == whole.prefills[: len(part.prefills)]
    assert part.steps[:] == whole.steps[: len(part.steps)]
    assert part.dropped == whole.dropped[: len(part.dropped)]
    assert part.end in (None, whole.end)
    for token in TEXTS:
        assert token not in part.tokens or part.tokens[token] == whole.tokens[token]


# a whole file


def test_a_whole_file_is_read_in_full(run: Path) -> None:
    trace = load(run)
    assert trace.header == header()
    assert trace.prompt is not None
    assert trace.prompt.token_ids == [1, 10]
    assert trace.prefills == [
        (0, Prefill(token=10, prob=0.25, coin=0.5, cached_tokens=1, time_us=12.5)),
    ]
    assert list(trace.steps) == [step(0), step(1), step(2)]
    assert [(d.first, d.last) for d in trace.dropped] == [(3, 3)]
    assert trace.end is not None
    assert trace.end.steps == 4
    assert trace.damage is None
    assert trace.size == run.stat().st_size
    assert trace.name == "run"


def test_steps_are_a_sequence(run: Path) -> None:
    steps = load(run).steps
    assert len(steps) == 3
    assert steps[2] == steps[-1] == step(2)
    assert steps[1:] == [step(1), step(2)]
    assert steps[::-1] == [step(2), step(1), step(0)]
    assert step(1) in steps
    with pytest.raises(IndexError):
        steps[3]


def test_without_an_end_the_output_is_put_together_from_the_steps(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.ddviz", header(), TEXTS.get) as recorder:
        recorder.prefill(Prefill(token=10))
        recorder.step(step(0))
        recorder.step(step(1))
    assert load(recorder.path).output_ids == [10, 20, 32, 20, 32]


def test_a_second_prefill_remembers_where_it_stands(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.ddviz", header(), TEXTS.get) as recorder:
        recorder.prefill(Prefill(token=10))
        recorder.step(step(0))
        recorder.prefill(Prefill(token=32))
    assert [(at, prefill.token) for at, prefill in load(recorder.path).prefills] == [(0, 10), (1, 32)]


# damage


def test_a_file_cut_at_any_byte_yields_its_whole_steps(tmp_path: Path) -> None:
    whole = load(write_run(tmp_path / "run.ddviz", steps=2))
    data = whole.path.read_bytes()
    ends = frame_ends(data)
    steps_at = {end: len(load_bytes(data[:end], tmp_path).steps) for end in ends}
    assert list(steps_at.values())[-1] == 2
    for cut in range(len(data)):
        before = [end for end in ends if end <= cut]
        if not before:
            with pytest.raises(TraceError):
                load_bytes(data[:cut], tmp_path)
            continue
        part = load_bytes(data[:cut], tmp_path)
        assert_a_true_part_of(part, whole)
        assert len(part.steps) == steps_at[before[-1]]
        assert part.size == before[-1]
        if cut == before[-1]:
            assert part.damage is None
        else:
            assert part.damage == (
                f"the last event is cut off at byte {before[-1]} ({cut - before[-1]} bytes of it are there); "
                f"{len(part.steps)} whole step{'' if len(part.steps) == 1 else 's'} can be read"
            )


def test_a_flipped_bit_never_gives_a_wrong_step(run: Path, tmp_path: Path) -> None:
    data, whole = run.read_bytes(), load(run)
    random = np.random.default_rng(0)
    harmless = 0
    for place in random.integers(0, 8 * len(data), 2000):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << (place % 8)
        try:
            part = load_bytes(bytes(flipped), tmp_path)
        except TraceError:
            continue
        assert_a_true_part_of(part, whole)
        if part.damage is None:
            harmless += 1
            assert len(part.steps) == 3
            assert part.end == whole.end
    assert harmless < 20, "the one unused bit in every frame's descriptor, no other"


def test_damage_in_the_middle_says_where_and_what_is_left(run: Path, tmp_path: Path) -> None:
    data = bytearray(run.read_bytes())
    ends = frame_ends(bytes(data))
    data[ends[-2] - 3] ^= 0xFF  # the checksum of the last but one: `dropped`
    part = load_bytes(bytes(data), tmp_path)
    assert part.damage is not None
    assert part.damage.startswith(f"damaged at byte {ends[-3]}: a frame does not decompress")
    assert part.damage.endswith("3 whole steps before it can be read, what follows is lost")


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"step","index":0}',
        b'{"event":"step"',
        b'{"event":"prefill","token":"x"}',
        b'{"event":"prefill","token":1,"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"event":"prefill","token":' + b"9" * 5000 + b"}",
        b"[]",
        b"null",
        b"",
        b"\xff\xfe",
    ],
    ids=["half step", "cut", "type", "deep", "huge", "list", "null", "empty", "binary"],
)
def test_a_whole_frame_of_nonsense_is_damage(tmp_path: Path, line: bytes) -> None:
    trace = load_bytes(frame(header_line()) + frame(line) + frame(b'{"event":"prefill","token":1}'), tmp_path)
    assert trace.damage is not None
    assert "an event is not valid" in trace.damage
    assert not trace.prefills


def test_a_frame_without_checksum_is_damage(tmp_path: Path) -> None:
    bare = zstandard.ZstdCompressor(write_checksum=False).compress(b'{"event":"prefill","token":1}')
    trace = load_bytes(frame(header_line()) + bare, tmp_path)
    assert trace.damage is not None
    assert "without checksum" in trace.damage


def test_a_frame_that_claims_a_huge_size_is_not_unpacked() -> None:
    data = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(17 << 20))
    with pytest.raises(DamageError, match="larger than 16 MiB"):
        decompress_frame(data, next_frame(data, 0))


# more than ddviz reads


def damage_of(run: Path, tmp_path: Path, *more: bytes) -> str:
    """What is said of a whole run with more frames behind it; the run itself is read."""
    trace = load_bytes(run.read_bytes() + b"".join(more), tmp_path)
    assert len(trace.steps) == 3
    return trace.damage or ""


def test_a_bomb_is_left_where_it_is(run: Path, tmp_path: Path) -> None:
    bomb = frame(b'{"event":"?","a":"' + b"a" * (8 << 20) + b'"}')
    assert len(bomb) < 2000
    assert "unpacks to more than 100 times its size" in damage_of(run, tmp_path, *[bomb] * 10)


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [("MAX_TOTAL", 20_000, "unpacks to more than"), ("MAX_EVENTS", 20, "holds more than 20 events")],
)
def test_a_trace_is_bounded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, sentence: str
) -> None:
    monkeypatch.setattr(frames, limit, value)
    assert damage_of(run, tmp_path) == ""
    assert sentence in damage_of(run, tmp_path, *[frame({"event": "?", "a": "x" * 1000})] * 20)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"emitted": [1] * 5000}, "a step of 5000 nodes; ddviz reads up to 4096"),
        ({"tree": {"tokens": [1] * 5000, "parents": [0] * 5000}}, "a step of 5000 nodes"),
        ({"slots": [1] * 250_000}, "a step of more than 200,000 values"),
        ({"times_us": {f"s{i}": 1.0 for i in range(101)}}, "a step of 101 stages"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("check_steps", [True, False])
def test_a_step_is_bounded(
    run: Path, tmp_path: Path, change: dict[str, object], sentence: str, check_steps: bool
) -> None:
    line = frame(msgspec.json.encode(json.loads(msgspec.json.encode(step(3))) | change))
    if check_steps:
        assert sentence in damage_of(run, tmp_path, line)
        return
    (tmp_path / "x.ddviz").write_bytes(run.read_bytes() + line)
    steps = load(tmp_path / "x.ddviz", check_steps=False).steps
    with pytest.raises(msgspec.ValidationError, match=sentence):
        steps[3]


def test_a_frame_of_endless_blocks_is_damage(run: Path, tmp_path: Path) -> None:
    blocks = b"\x28\xb5\x2f\xfd\x24\x00" + b"\x00\x00\x00" * 1_000_000
    assert "larger than 16 MiB" in damage_of(run, tmp_path, blocks)


def test_a_header_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="its first line is longer than 1 MiB"):
        load_bytes(frame(header_line(notes=["x" * 1000] * 1100)), tmp_path)


def test_a_token_that_is_far_too_long_is_cut(run: Path, tmp_path: Path) -> None:
    long = base64.b64encode(b"a" * 10_000).decode()
    trace = load_bytes(run.read_bytes() + frame({"event": "tokens", "bytes": {"77": long}}), tmp_path)
    assert trace.tokens[77] == b"a" * 256 + "⟨… 10000 bytes⟩".encode()


# versions


def test_a_newer_major_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace format 2\.0 is newer .* upgrade with: pip install -U ddviz"):
        load_bytes(frame(header_line(version="2.0", sampling="quite another thing")), tmp_path)


@pytest.mark.parametrize("version", ["", "one", "²", "-1.0", None, "9" * 5000 + ".0"])
def test_a_version_that_is_none(tmp_path: Path, version: object) -> None:
    with pytest.raises(TraceError, match="names no version"):
        load_bytes(frame(header_line(version=version)), tmp_path)


def test_a_newer_minor_version_may_hold_events_and_fields_we_do_not_know(tmp_path: Path) -> None:
    new_step = json.loads(msgspec.json.encode(step(0))) | {"mood": "good"}
    data = b"".join(
        [
            frame(header_line(version="1.7", weather="fine")),
            frame({"event": "weather", "sun": True}),
            frame(new_step),
            frame({"sun": 1, "event": "weather"}),
            frame({"event": "prefill", "token": 3}),
        ]
    )
    trace = load_bytes(data, tmp_path)
    assert trace.damage is None
    assert list(trace.steps) == [step(0)]
    assert len(trace.prefills) == 1


# no traces


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone\.ddviz: no such file"):
        load(tmp_path / "gone.ddviz")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a folder, not a trace"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"step,n\n1,2\n", "not a .ddviz trace .* record one with: ddviz record"),
        (b"\x28", "cut off inside its header"),
        (b"\x28\xb5\x2f\xfe1234", "not a .ddviz trace"),
        (zstandard.compress(b"hello " * 100), "but not a ddviz trace .* without checksum"),
        (streamed(b"# a text\nas zstd makes it of stdin\n"), "but not a ddviz trace .* without checksum"),
        (frame(b"hello"), "but not a ddviz trace .*no line of JSON"),
        (frame(b"[" * 100_000), "but not a ddviz trace .*no line of JSON"),
        (frame({"event": "prefill", "token": 1}), "but not a ddviz trace .*its first line is no header"),
        (frame(header_line(event="prefill", token=1)), "its first event is no header"),
        (frame(header_line(target=5)), r"its header is not valid: .*target"),
    ],
    ids=[
        "empty",
        "text",
        "one byte",
        "near",
        "zstd",
        "zstd of stdin",
        "words",
        "deep",
        "no header",
        "liar",
        "types",
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message) as refused:
        load_bytes(data, tmp_path)
    assert "\n" not in str(refused.value)


# a growing file


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_following_a_file_written_in_odd_chunks(run: Path, tmp_path: Path, chunk: int) -> None:
    data, whole = run.read_bytes(), load(run)
    path = tmp_path / "growing.ddviz"
    follower = TraceFollower(path)
    assert follower.poll() == 0
    assert follower.trace is None
    events = 0
    for start in range(0, len(data), chunk):
        with path.open("ab") as file:
            file.write(data[start : start + chunk])
        events += follower.poll()
        assert events == sum(end <= start + chunk for end in frame_ends(data))
        if follower.trace is not None:
            assert_a_true_part_of(follower.trace, whole)
            assert follower.trace.damage is None
    assert follower.trace is not None
    assert list(follower.trace.steps) == list(whole.steps)
    assert follower.trace.end == whole.end
    assert follower.torn_bytes() == 0
    assert follower.poll() == 0


def test_follow_waits_for_the_file_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run.ddviz"
    writer = threading.Timer(0.1, lambda: write_run(path, steps=20))
    writer.start()
    seen = [len(trace.steps) for trace in follow(path, interval=0.01)]
    writer.join()
    assert seen == sorted(seen)
    assert seen[-1] == 20


def test_follow_ends_at_damage(run: Path, tmp_path: Path) -> None:
    data = bytearray(run.read_bytes())
    data[-1] ^= 1
    path = tmp_path / "run.ddviz"
    path.write_bytes(data)
    *_, last = follow(path, interval=0.01)
    assert last.damage is not None
    assert len(last.steps) == 3


def test_follow_refuses_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a trace")
    with pytest.raises(TraceError, match=r"not a \.ddviz trace"):
        next(follow(tmp_path / "notes.txt"))


def test_a_recording_that_starts_anew_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.ddviz", steps=5)
    follower = TraceFollower(path)
    follower.poll()
    write_run(path, steps=1)
    follower.poll()
    assert follower.trace is not None
    assert follower.trace.damage == "the file became shorter while it was read; open it again"


def load_bytes(data: bytes, folder: Path) -> Trace:
    path = folder / "part.ddviz"
    path.write_bytes(data)
    return load(path)
