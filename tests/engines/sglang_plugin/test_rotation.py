"""A trace folder with a limit: what goes, what stays."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ddviz.engines.sglang_plugin.tracing import rotation as module
from ddviz.engines.sglang_plugin.tracing.jobs import Begin, Ended
from ddviz.engines.sglang_plugin.tracing.rotation import LIMIT, Rotation, limit_of, rotation, shrink
from ddviz.trace import schema
from tests.engines.sglang_plugin.twins import new_tracer


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def trace(folder, name, age, size=1000):
    """A file of so many bytes, written so many seconds ago."""
    path = folder / f"{name}.ddviz"
    path.write_bytes(b"x" * size)
    os.utime(path, (1_800_000_000 - age, 1_800_000_000 - age))
    return path


def names(folder):
    return {path.stem for path in folder.iterdir()}


def test_the_oldest_go_first_until_the_rest_fits(folder):
    for age in range(5):
        trace(folder, f"age{age}", age)
    assert shrink(folder, 2500, spared=[]) == 2000
    assert names(folder) == {"age0", "age1"}


def test_one_that_is_being_written_stays_whatever_its_age(folder):
    old = trace(folder, "old", 9)
    trace(folder, "middle", 5)
    trace(folder, "new", 1)
    assert shrink(folder, 2000, spared=[old]) == 2000
    assert names(folder) == {"old", "new"}


def test_other_files_are_neither_counted_nor_deleted(folder):
    (folder / "notes.txt").write_bytes(b"x" * 10_000)
    trace(folder, "only", 1)
    assert shrink(folder, 1000, spared=[]) == 1000
    assert names(folder) == {"notes", "only"}


def test_without_a_limit_nothing_goes(folder):
    Rotation(None).finished(trace(folder, "only", 1), [])
    assert names(folder) == {"only"}


def test_a_folder_is_looked_through_only_when_it_is_full(folder, monkeypatch):
    looks = []
    monkeypatch.setattr(module, "shrink", lambda *asked: looks.append(asked) or shrink(*asked))
    kept = Rotation(3500)
    for count in range(1, 5):
        kept.finished(trace(folder, f"trace{count}", 10 - count), [])
        assert len(looks) == {1: 1, 2: 1, 3: 1, 4: 2}[count]
    assert names(folder) == {"trace2", "trace3", "trace4"}


def test_with_other_writers_a_folder_counts_as_full_sooner(folder, monkeypatch):
    """What the others wrote is taken to be as much as its own: nobody tells it."""
    looks = []
    monkeypatch.setattr(module, "shrink", lambda *asked: looks.append(asked) or shrink(*asked))
    kept = Rotation(4500, writers=2)
    for count in range(1, 4):
        kept.finished(trace(folder, f"trace{count}", 10 - count), [])
        assert len(looks) == {1: 1, 2: 1, 3: 2}[count]
    assert names(folder) == {"trace1", "trace2", "trace3"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((None, None), ("", None), ("1048576", 1 << 20), ("2097152B", 2 << 20), ("2G", 2 << 30)),
        *(("1M", 1 << 20), ("10 MB", 10 << 20), ("2048KiB", 2 << 20), ("1.5m", 3 << 19), ("0.5T", 1 << 39)),
    ],
)
def test_a_limit_is_written_as_one_would(text, size):
    assert limit_of(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("much", "-1", "2..5G", "G", "1 X", "0", "0.0G"),
        *("20", "0.5", "1048575", "1023K", "0.9M"),  # below 1M: the G forgotten
        *("20iB", "20KK", "\uff12\uff10G", "\u0662G", "2000\u212a"),  # full-width, Arabic digits; Kelvin sign
    ],
)
def test_a_limit_that_is_no_size_or_too_small_is_an_error(monkeypatch, text):
    monkeypatch.setenv(LIMIT, text)
    with pytest.raises(ValueError, match=r"DDVIZ_TRACE_LIMIT is .* must be 1M or more: .*such as 2G"):
        rotation()


def test_the_trace_that_has_just_ended_stays_though_it_is_larger_than_the_limit(folder):
    trace(folder, "before", 5)
    Rotation(1500).finished(trace(folder, "ended", 9, size=2000), [])
    assert names(folder) == {"ended"}


def test_a_trace_that_another_writer_deleted_counts_as_gone(folder, monkeypatch, caplog):
    """Two shrink at once: the other takes the oldest between this one's look and its unlink."""
    for age in range(4):
        trace(folder, f"age{age}", age)
    unlink = Path.unlink

    def too_late(path, **given):
        if path.stem == "age3":
            unlink(path)
        unlink(path, **given)

    monkeypatch.setattr(Path, "unlink", too_late)
    assert shrink(folder, 2500, spared=[]) == 2000
    assert names(folder) == {"age0", "age1"} and not caplog.records


def test_a_trace_that_is_gone_when_it_ends_is_no_error(folder):
    kept = Rotation(1500)
    kept.finished(trace(folder, "first", 1), [])
    kept.finished(folder / "gone.ddviz", [])
    assert names(folder) == {"first"}


def test_the_writer_keeps_the_folder_within_the_limit_as_traces_end(folder, monkeypatch):
    """Ten traces one after the other, one that stays open all the while, and room for about five."""
    monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setenv(LIMIT, "5000")
    writer = new_tracer(folder, block_size=4, budget=6, topk_cap=3, vocab_size=24, row_width=128).writer
    header = schema.Header(
        created="2026-11-30T00:00:00+00:00",
        engine=schema.EngineInfo(name="sglang", version="0.5.17"),
        algorithm="DDTREE",
        target="table",
        sampling=schema.SamplingParams(),
        vocab_size=24,
        request_id="",
    )
    noise = np.random.default_rng(0).integers(33, 127, (11, 900), dtype=np.uint8)
    for number, text in enumerate(noise):
        rid = f"r{number}"
        own = msgspec.structs.replace(header, target=text.tobytes().decode())
        writer.put(Begin(rid, str(folder / f"{rid}.ddviz"), own, [1, 2]))
        if number > 0:
            writer.put(Ended(rid, schema.End(finish_reason="stop", output_ids=[1], steps=0)))
    writer.close()
    assert {"r0", "r10"} < names(folder)
    assert "r1" not in names(folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5000
