"""`ddviz export`, as a user types it."""

import re

import pytest

from tests.commands import ddviz, typed
from tests.viewer.fixtures import write_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("export") / "story.ddviz").path


def export(trace, *args):
    return ddviz("export", trace, *args)


@pytest.mark.parametrize("level", ["light", "standard"])
def test_both_sizes_are_told_before_the_page_is_written(trace, tmp_path, level):
    out = tmp_path / "new folder" / "x.html"
    done = typed("export", trace, "--to", "html", "--level", level, "--step", 4, "--out", out)
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert [re.match(r"--level (\w+) +about +[\d.]+ [kM]B", line)[1] for line in told[:2]] == [
        "light",
        "standard",
    ]
    assert next(line for line in told if "this one" in line).startswith(f"--level {level}")
    assert 'data-step="4"' in out.read_text("utf-8")


@pytest.mark.parametrize("to", ["dot", "graphml", "json"])
def test_a_step_is_written_for_other_tools(trace, tmp_path, to):
    done = export(trace, "--to", to, "--step", 3, "--out", tmp_path / f"x.{to}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"x.{to}").stat().st_size > 500
    assert "step 3 of story" in done.stderr


@pytest.mark.parametrize("to", ["html", "json"])
def test_a_trace_that_is_cut_off_is_told_on_the_terminal_and_exported(trace, tmp_path, to):
    cut = tmp_path / "cut.ddviz"
    cut.write_bytes(trace.read_bytes()[:-10])
    done = export(cut, "--to", to, "--out", tmp_path / "x")
    assert done.returncode == 0 and (tmp_path / "x").is_file()
    assert done.stderr.startswith(f"{cut}: the last event is cut off at byte ")
    assert "cut off" not in export(trace, "--to", to, "--out", tmp_path / "y").stderr


def test_nothing_is_overwritten_unless_forced_and_never_the_trace_itself(trace, tmp_path):
    out = tmp_path / "x.json"
    out.write_text("mine")
    refused = export(trace, "--to", "json", "--out", out)
    assert refused.returncode == 2 and "pass --force" in refused.stderr and out.read_text() == "mine"
    assert export(trace, "--to", "json", "--out", out, "--force").returncode == 0
    before = trace.read_bytes()
    assert export(trace, "--to", "json", "--out", trace, "--force").returncode == 2
    assert trace.read_bytes() == before


def test_a_missing_dot_is_one_sentence(trace, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = export(trace, "--to", "png", "--out", tmp_path / "x.png")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("install it with: sudo apt-get install graphviz")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    "misuse",
    [
        ["--to", "gif", "--out", "x"],
        ["--to", "json"],
        ["--out", "x"],
        ["--to", "json", "--step", "12", "--out", "x"],
        ["--to", "html", "--step", "12", "--out", "x"],
        ["--to", "json", "--step", "-1", "--out", "x"],
        ["--to", "json", "--level", "light", "--out", "x"],
    ],
)
def test_misuse_exits_2_and_writes_nothing(trace, tmp_path, misuse):
    args = [str(tmp_path / "no" / "x") if arg == "x" else arg for arg in misuse]
    done = export(trace, *args)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "no").exists()


def test_help_says_what_each_format_is(trace):
    text = " ".join(export(trace, "--help").stdout.split())
    for word in ("html", "svg", "png", "dot", "graphml", "json", "light", "standard", "--force", "is made"):
        assert word in text
