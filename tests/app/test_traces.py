"""The registry: what may be read, and that nothing a browser sends becomes a path."""

import contextlib
import os
import time
from datetime import datetime
from pathlib import Path

import pytest
import zstandard

from ddviz.app import traces
from ddviz.app.folders import reserved_path
from ddviz.app.traces import Registry, read_lessons, run_name, run_title
from ddviz.errors import DdvizError, TraceError
from ddviz.trace import load
from tests.viewer.fixtures import write_trace

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture
def registry(tmp_path):
    for folder in ("samples", "runs"):
        (tmp_path / folder).mkdir()
    return Registry(tmp_path / "samples", tmp_path / "runs")


def steps_of(trace):
    return len(trace.steps)


def written(path):
    return write_trace(path).path


def test_a_file_keeps_its_id_and_another_file_gets_another(registry, tmp_path):
    first = registry.add(tmp_path / "a.ddviz")
    assert registry.add(tmp_path / "x" / ".." / "a.ddviz") == first
    assert registry.add(tmp_path / "b.ddviz") != first
    assert first in registry


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a.ddviz",
        "samples/a.ddviz",
        "file:///etc/passwd",
        "%2e%2e",
        "\0",
    ],
)
def test_only_an_id_that_was_given_out_is_looked_up(registry, tmp_path, sent):
    written(tmp_path / "samples" / "a.ddviz")
    registry.samples()
    with pytest.raises(DdvizError, match="not open in the app"):
        registry.view(sent, steps_of)


def test_the_path_itself_is_no_id(registry, tmp_path):
    path = written(tmp_path / "samples" / "a.ddviz")
    registry.samples()
    with pytest.raises(DdvizError, match="not open in the app"):
        registry.view(str(path), steps_of)


def test_samples_come_in_the_order_of_their_readme(registry, tmp_path):
    for name in ("alpha", "beta", "gamma"):
        written(tmp_path / "samples" / f"{name}.ddviz")
    (tmp_path / "samples" / "README.md").write_text(
        "| [`gamma.ddviz`](gamma.ddviz) | how **greedy** goes |\n"
    )
    listed = registry.samples()
    assert [entry.title for entry in listed] == ["gamma", "alpha", "beta"]
    assert listed[0].about == "how greedy goes"


@pytest.mark.parametrize(
    "line",
    [
        "| `a-b.ddviz` | what it teaches |",
        "| [`a-b.ddviz`](a-b.ddviz) | what it teaches |",
        "- `a-b.ddviz`: what it teaches",
        "**a-b.ddviz** what it teaches",
        "* [a-b.ddviz](a-b.ddviz) - what it teaches",
    ],
)
def test_a_lesson_is_read_from_any_usual_list(tmp_path, line):
    (tmp_path / "README.md").write_text(f"# Samples\n\n{line}\n")
    assert read_lessons(tmp_path / "README.md") == {"a-b": "what it teaches"}


def test_every_trace_that_a_line_names_gets_its_words(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(
        "- `a-b.ddviz`, `a-t0.6.ddviz`,\n  `c.ddviz` and `d.ddviz`: one lesson, no `e.ddviz`;\n  two lines\n"
        "- `f.ddviz`: another\n  - `g.ddviz`: a third\n"
    )
    words = "one lesson, no e.ddviz; two lines"
    assert read_lessons(readme) == dict.fromkeys(["a-b", "a-t0.6", "c", "d"], words) | {
        "f": "another",
        "g": "a third",
    }


def test_every_sample_has_its_own_words():
    lessons = read_lessons(TRACES / "README.md")
    assert sorted(lessons) == sorted(path.stem for path in TRACES.glob("*.ddviz"))
    assert not any(".ddviz" in words for words in lessons.values())
    assert lessons["sglang-64-t1.0"].startswith("quicksort, budget 64")
    assert lessons["sglang-batch-haiku"].startswith("one of eight requests")


def test_saved_runs_come_newest_first_and_other_files_not_at_all(registry, tmp_path):
    for age, name in enumerate(["2026-11-29T20-41-07-ddtree-new", "2026-11-28T20-41-07-ar-old", "mine"]):
        path = written(tmp_path / "runs" / f"{name}.ddviz")
        os.utime(path, (1_800_000_000 - age, 1_800_000_000 - age))
    (tmp_path / "runs" / "notes.txt").write_text("no trace")
    titles = [entry.title for entry in registry.saved_runs()]
    assert titles == ["29 Nov 20:41:07 · ddtree new", "28 Nov 20:41:07 · ar old", "mine"]


def test_folders_that_do_not_exist_are_empty(tmp_path):
    registry = Registry(tmp_path / "none", tmp_path / "nothing")
    assert registry.samples() == registry.saved_runs() == []


def test_a_growing_file_is_read_on_from_where_it_was(registry, tmp_path):
    path = tmp_path / "runs" / "r.ddviz"
    trace_id = registry.add(path)
    assert registry.view(trace_id, steps_of, growing=True) is None  # not there yet
    whole = written(tmp_path / "whole.ddviz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    some = registry.view(trace_id, steps_of, growing=True)
    path.write_bytes(whole)
    assert 0 < some < registry.view(trace_id, steps_of, growing=True)


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("bad", ["text", "no checksum", "flipped", "cut in its header", "another"])
def test_a_good_trace_over_an_unreadable_one_is_read(registry, tmp_path, bad, growing):
    good = written(tmp_path / "good.ddviz").read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    content = {
        "text": b"hello, I am a text file",
        "no checksum": zstandard.compress(b"{}\n"),
        "flipped": bytes(flipped),
        "cut in its header": good[:20],
        "another": write_trace(tmp_path / "another.ddviz", steps=4).path.read_bytes(),
    }
    path = tmp_path / "runs" / "r.ddviz"
    path.write_bytes(content[bad])
    trace_id = registry.add(path)
    for _ in range(2):
        with contextlib.suppress(TraceError):
            registry.view(trace_id, steps_of, growing)
    path.write_bytes(good)
    now = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(now, now))  # of one size, both may be written in one tick of the clock
    seen = registry.view(trace_id, lambda trace: (len(trace.steps), trace.damage), growing)
    assert seen == (len(load(path).steps), None)


def test_a_file_that_is_no_trace_is_refused_at_every_look(registry, tmp_path):
    path = tmp_path / "runs" / "r.ddviz"
    path.write_bytes(b"hello, I am a text file")
    for growing in (True, True, False):
        with pytest.raises(TraceError, match=r"not a \.ddviz trace"):
            registry.view(registry.add(path), steps_of, growing)


def test_of_a_long_file_no_more_is_read_than_is_needed(registry, tmp_path, monkeypatch):
    path = written(tmp_path / "runs" / "r.ddviz")
    monkeypatch.setattr("ddviz.app.traces.READ_AT_ONCE", path.stat().st_size // 4)
    trace_id, whole = registry.add(path), load(path)

    def seen(trace):
        return len(trace.steps), trace.unread, trace.end is None, trace.damage

    steps, unread, is_open, damage = registry.view(trace_id, seen, enough=lambda trace: len(trace.steps) > 0)
    assert 0 < steps < len(whole.steps) and 0 < unread < whole.size and is_open and damage is None
    assert registry.view(trace_id, seen, enough=lambda trace: len(trace.steps) > 0)[1] == unread
    assert registry.view(trace_id, seen) == (len(whole.steps), 0, False, None)


def test_a_cut_off_end_is_damage_only_where_nobody_writes_on(registry, tmp_path):
    path = written(tmp_path / "runs" / "r.ddviz")
    path.write_bytes(path.read_bytes()[:-10])
    trace_id = registry.add(path)
    assert registry.view(trace_id, lambda trace: trace.damage, growing=True) is None
    assert "cut off" in registry.view(trace_id, lambda trace: trace.damage)


def test_a_flipped_bit_leaves_the_steps_before_it(registry, tmp_path):
    path = written(tmp_path / "runs" / "r.ddviz")
    data = bytearray(path.read_bytes())
    data[int(len(data) * 0.8)] ^= 1
    path.write_bytes(data)
    steps, damage = registry.view(registry.add(path), lambda trace: (len(trace.steps), trace.damage))
    assert steps > 0
    assert "damaged at byte" in damage


@pytest.mark.parametrize("content", [b"", b"hello, I am a text file", b"\x28\xb5\x2f\xfd\x00"])
def test_a_file_that_is_no_trace_is_named_without_its_folder(registry, tmp_path, content):
    path = tmp_path / "notes.ddviz"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        registry.view(registry.add_upload(path), steps_of)
    assert str(caught.value).startswith("notes.ddviz: ")
    assert str(tmp_path) not in str(caught.value)


def test_an_upload_above_the_limit_is_refused(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MAX_UPLOAD", 10)
    path = written(tmp_path / "big.ddviz")
    with pytest.raises(TraceError, match="larger than"):
        registry.add_upload(path)


@pytest.mark.parametrize(("limit", "value"), [("MAX_OPEN", 2), ("MAX_OPEN_BYTES", 1)])
def test_only_some_traces_stay_in_memory_and_any_can_be_read_again(
    registry, tmp_path, monkeypatch, limit, value
):
    monkeypatch.setattr(traces, "MIN_OPEN", 2)
    monkeypatch.setattr(traces, limit, value)
    ids = [registry.add(written(tmp_path / f"{i}.ddviz")) for i in range(4)]
    counts = [registry.view(trace_id, steps_of) for trace_id in ids]
    assert len(registry._open) == 2
    assert registry.view(ids[0], steps_of) == counts[0]


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("First, WORDS of a prompt that goes on", "2026-11-29T20-41-07-ddtree-first-words-of-a-prompt"),
        ("../../etc/passwd", "2026-11-29T20-41-07-ddtree-etc-passwd"),
        ("你好", "2026-11-29T20-41-07-ddtree-prompt"),
        ("x" * 300, "2026-11-29T20-41-07-ddtree-" + "x" * 40),
    ],
)
def test_a_run_is_named_after_its_time_mode_and_first_words(prompt, name):
    assert run_name("ddtree", prompt, datetime(2026, 11, 29, 20, 41, 7)) == name


def test_two_runs_in_one_second_get_two_files(tmp_path):
    with reserved_path(tmp_path, "run") as first:
        first.touch()
    with reserved_path(tmp_path, "run") as second:
        assert second.name == "run-2.ddviz"
    assert list(tmp_path.iterdir()) == [first]


def test_a_name_that_only_looks_like_a_time_is_its_own_title(tmp_path):
    assert run_title(tmp_path / "2026-99-99T20-41-07-x.ddviz") == "2026-99-99T20-41-07-x"


# --- a server's trace folder


@pytest.fixture
def watched(tmp_path):
    for folder in ("samples", "runs", "server"):
        (tmp_path / folder).mkdir()
    return Registry(tmp_path / "samples", tmp_path / "runs", tmp_path / "server")


def test_requests_come_in_the_order_in_which_they_began_and_ddvizs_own_not_at_all(watched, tmp_path):
    for name in ("20261130-034030-one", "20261130-034032-three", "20261130-034031-two"):
        written(tmp_path / "server" / f"{name}.ddviz")
    written(tmp_path / "server" / "20261130-034033-ddviz-probe-0a1b.ddviz")
    listed = watched.requests()
    assert [request.title for request in listed] == [
        "30 Nov 03:40:32 · three",
        "30 Nov 03:40:31 · two",
        "30 Nov 03:40:30 · one",
    ]
    assert {entry.title for entry in watched.saved_runs()} == {request.title for request in listed}
    assert watched.linked(watched.link_of(listed[0].id)) == listed[0].id


def test_a_request_grows_until_its_end_or_until_nobody_has_written_for_long(watched, tmp_path):
    path = tmp_path / "server" / "20261130-034030-one.ddviz"
    write_trace(path, finish=False)
    trace_id = watched.add(path)
    assert watched.is_growing_request(trace_id)
    assert watched.requests()[0].live
    now = path.stat().st_mtime
    os.utime(path, (now - 2 * traces.QUIET_S, now - 2 * traces.QUIET_S))
    assert not watched.is_growing_request(trace_id)
    assert not watched.requests()[0].live
    written(path)
    assert not watched.is_growing_request(trace_id)


def test_a_request_from_before_the_clock_was_set_back_is_not_under_way(watched, tmp_path):
    path = tmp_path / "server" / "20261130-034030-one.ddviz"
    write_trace(path, finish=False)
    ahead = time.time() + 3600
    os.utime(path, (ahead, ahead))
    assert [request.live for request in watched.requests()] == [False]
    assert not watched.is_growing_request(watched.add(path))


def test_a_trace_elsewhere_is_no_request(watched, tmp_path):
    write_trace(tmp_path / "runs" / "r.ddviz", finish=False)
    assert not watched.is_growing_request(watched.add(tmp_path / "runs" / "r.ddviz"))
    assert not watched.is_growing_request("no such id")


def test_a_request_that_the_server_deletes_is_no_accident(watched, tmp_path):
    path = written(tmp_path / "server" / "20261130-034030-one.ddviz")
    trace_id = watched.requests()[0].id
    path.unlink()
    assert not watched.is_growing_request(trace_id)
    assert watched.requests() == []
