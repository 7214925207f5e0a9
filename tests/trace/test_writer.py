"""What is recorded is on the disk, and a disk that is full costs one event, not the trace."""

import errno
import inspect
import os
import shutil
import threading
from pathlib import Path

import pytest
import zstandard

from ddviz.errors import TraceError
from ddviz.trace import NullRecorder, Recorder, load
from ddviz.trace.schema import End, Prefill
from tests.trace.runs import TEXTS, header, step, write_run


def test_an_existing_trace_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.ddviz")
    before = path.read_bytes()
    with pytest.raises(TraceError, match=r"run\.ddviz: exists already; choose another name or pass --force"):
        Recorder(path, header(), TEXTS.get)
    assert path.read_bytes() == before
    Recorder(path, header(request_id="second"), TEXTS.get, overwrite=True).close()
    assert load(path).header.request_id == "second"


def test_folders_are_made(tmp_path: Path) -> None:
    Recorder(tmp_path / "a" / "b" / "run.ddviz", header(), TEXTS.get).close()
    assert load(tmp_path / "a" / "b" / "run.ddviz").header == header()


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="can't write a trace there"):
        Recorder(tmp_path / "file" / "run.ddviz", header(), TEXTS.get)
    with pytest.raises(TraceError, match="is a folder; name a file, such as"):
        Recorder(tmp_path, header(), TEXTS.get, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, overwrite: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="pipe: is no regular file") as refused:
        Recorder(tmp_path / "pipe", header(), TEXTS.get, overwrite)
    assert refused.value.exit_code == 2


def test_every_call_is_readable_at_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.ddviz", header(), TEXTS.get)
    assert load(recorder.path).header == header()
    recorder.step(step(0))
    assert load(recorder.path).steps[0] == step(0)
    recorder.step(step(1))
    assert len(load(recorder.path).steps) == 2
    recorder.close()


def test_zstdcat_would_show_json_lines(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.ddviz")
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().decode()
    assert text.endswith("\n")
    assert [line[:16] for line in text.splitlines()][:3] == [
        '{"event":"header',
        '{"event":"tokens',
        '{"event":"prompt',
    ]


def test_the_bytes_of_a_token_are_asked_and_written_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def token_bytes(token: int) -> bytes | None:
        asked.append(token)
        return TEXTS.get(token)

    with Recorder(tmp_path / "run.ddviz", header(), token_bytes) as recorder:
        recorder.prompt([1, 10, 10], "")
        recorder.prefill(Prefill(token=10))
        recorder.step(step(0))
        recorder.step(step(1))
        recorder.end(End(finish_reason="stop", output_ids=[10, 20, 32], steps=2))
    assert sorted(asked) == sorted(set(asked))
    # prompt, tree, draft candidates, target's top rows and argmax
    assert set(asked) == {1, 10, 20, 21, 30, 31, 32, 40, 41, 22, 23}
    tokens = load(recorder.path).tokens
    assert all(tokens[token] == raw for token, raw in TEXTS.items() if token in asked)
    assert tokens[41] == "⟨41⟩".encode(), "an id without bytes reads as itself"
    assert 41 not in tokens


def test_stages_are_timed_unless_the_step_brings_its_times(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.ddviz", header(), TEXTS.get) as recorder:
        own, timed, untimed = step(0), step(1), step(2)
        timed.times_us = untimed.times_us = {}
        with recorder.stage("draft"):
            pass
        recorder.step(own)
        for _ in range(2):
            with recorder.stage("draft"):
                pass
        with recorder.stage("verify"):
            pass
        recorder.step(timed)
        recorder.step(untimed)
    steps = load(recorder.path).steps
    assert steps[0].times_us == step(0).times_us
    assert set(steps[1].times_us) == {"draft", "verify"}
    assert steps[2].times_us == {}


def test_a_null_recorder_has_the_same_methods() -> None:
    def public(kind: type) -> dict[str, str]:
        names = [name for name in vars(kind) if not name.startswith("_") or name in ("__enter__", "__exit__")]
        return {
            name: str(inspect.signature(getattr(kind, name)))
            for name in names
            if callable(getattr(kind, name))
        }

    assert public(NullRecorder) == public(Recorder)


def test_a_null_recorder_does_nothing() -> None:
    with NullRecorder() as recorder:
        recorder.prompt([1], "x")
        with recorder.stage("draft"):
            recorder.step(step())
        recorder.end(End(finish_reason="stop", output_ids=[], steps=1))
    assert recorder.path is None


class FullDisk:
    """A raw file on a disk with so many bytes left."""

    def __init__(self, file: object, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(self.room, len(data))
        self.room -= taken
        return self.file.write(data[:taken])  # type: ignore[attr-defined,no-any-return]

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 1, 150, 1000])
def test_a_full_disk_costs_the_event_and_not_the_trace(tmp_path: Path, room: int) -> None:
    recorder = Recorder(tmp_path / "run.ddviz", header(), TEXTS.get)
    recorder.step(step(0))
    recorder._file = FullDisk(recorder._file, room)  # type: ignore[assignment]
    index = 1
    with pytest.raises(TraceError) as refused:  # noqa: PT012 - one of them fails, which depends on the room
        for index in range(1, 50):
            recorder.step(step(index))
    assert str(refused.value) == (
        f"{recorder.path}: the trace could not be written (No space left on device); "
        "its whole steps are kept; free some space or choose another folder"
    )
    trace = load(recorder.path)
    assert trace.damage is None
    assert list(trace.steps) == [step(i) for i in range(index)]
    with pytest.raises(TraceError, match="closed already"):
        recorder.step(step(index))
    recorder.close()


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(recorder: Recorder, overwrite: bool) -> FullDisk:
        return FullDisk(open(recorder.path, "wb", buffering=0), 0)

    monkeypatch.setattr(Recorder, "_open", full)
    with pytest.raises(TraceError, match="No space left on device") as failed:
        Recorder(tmp_path / "run.ddviz", header(), TEXTS.get)
    assert failed.value.exit_code == 1


def test_a_disk_that_fails_at_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    recorder = Recorder(tmp_path / "run.ddviz", header(), TEXTS.get)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TraceError, match="Input/output error"):
        recorder.close()
    recorder.close()


def test_closing_twice_is_harmless_and_writing_after_it_is_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.ddviz", header(), TEXTS.get)
    recorder.close()
    recorder.close()
    with pytest.raises(TraceError, match="closed already"):
        recorder.dropped(0, 1, "late")


def test_events_of_two_threads_do_not_mix(tmp_path: Path) -> None:
    """Steps of the engine's thread, dropped events of the one that empties its queue."""
    with Recorder(tmp_path / "run.ddviz", header(), TEXTS.get) as recorder:
        other = threading.Thread(target=lambda: [recorder.dropped(i, i, "x" * 200) for i in range(200)])
        other.start()
        for index in range(200):
            recorder.step(step(index))
        other.join()
    trace = load(recorder.path)
    assert trace.damage is None
    assert [s.index for s in trace.steps] == list(range(200))
    assert [d.first for d in trace.dropped] == list(range(200))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_trace_that_is_removed_while_it_is_written_comes_back_whole(tmp_path: Path, what: str) -> None:
    path = tmp_path / "runs" / "x.ddviz"
    with Recorder(path, header(), TEXTS.get, restore=True) as recorder:
        recorder.prompt([1, 2], "ab")
        for _ in range(2):  # also what was brought back once
            before = path.read_bytes()
            path.unlink() if what == "file" else shutil.rmtree(path.parent)
            recorder.prefill(Prefill(token=3))
            assert path.read_bytes().startswith(before)
    assert load(path).damage is None and len(load(path).prefills) == 2
    assert list(path.parent.iterdir()) == [path]


def test_a_trace_that_is_removed_stays_so_where_a_limit_may_remove_it(tmp_path: Path) -> None:
    path = tmp_path / "x.ddviz"
    with Recorder(path, header(), TEXTS.get) as recorder:
        path.unlink()
        recorder.prompt([1, 2], "ab")
    assert not path.exists()


def test_another_file_under_the_name_of_a_removed_trace_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.ddviz"
    recorder = Recorder(path, header(), TEXTS.get, restore=True)
    path.unlink()
    path.write_text("something else")
    with pytest.raises(TraceError, match="another file has its name"):
        recorder.prompt([1, 2], "ab")
    assert recorder.closed and path.read_text() == "something else"
    assert list(tmp_path.iterdir()) == [path]
