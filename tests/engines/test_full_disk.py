"""A file system that is really full: a small tmpfs in a mount namespace of the tested processes."""

import json
import os
import shutil
import subprocess
import sys

import msgspec
import pytest

from ddviz.check.doctor import examine, faults
from ddviz.engines.base import EngineOptions
from ddviz.trace import load

SMALL = 96 << 10  # bytes of the file system: some ten steps
FULL = (
    "small/run.ddviz: the trace could not be written (No space left on device); "
    "its whole steps are kept; free some space or choose another folder"
)

# mounts, runs the command with all its arguments, and brings out what lies on the file system
ON_SMALL_DISK = f"""
mount -t tmpfs -o size={SMALL} none "$1" && shift && "$@"
code=$?
cp small/*.ddviz . && exit $code
"""

# An app in short: a run into the full file system, another that finds it full, then one elsewhere.
APP = """
import json, sys, time
from pathlib import Path
import msgspec
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.process import EngineProcess

engine = EngineProcess(msgspec.json.decode(sys.argv[1], type=EngineOptions))
params = GenerateParams(prompt="hello", mode="ddtree", max_new_tokens=300, temperature=1.0, seed=1)

def ready():
    while engine.status().state != "ready":
        assert engine.status().state not in ("off", "failed"), engine.status()
        time.sleep(0.02)
    return engine.status().error

ready()
errors = []
for path in ("small/run.ddviz", "small/late.ddviz", "elsewhere.ddviz"):
    engine.generate(params, Path(path))
    errors.append(ready())
print(json.dumps(errors))
engine.close(kill=True)
"""


@pytest.fixture
def on_small_disk(tmp_path):
    """Runs a command in a folder whose subfolder `small` is a file system of its own; its traces come out."""
    (tmp_path / "small").mkdir()
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]

    def run(*command):
        shell = [*namespace, "sh", "-c", ON_SMALL_DISK, "sh", "small", *map(str, command)]
        return subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    if not shutil.which("unshare"):
        pytest.skip("no unshare here (util-linux), which makes a mount namespace")
    if (refused := run("touch", "small/probe.ddviz")).returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {refused.stderr.strip():.100}")
    (tmp_path / "probe.ddviz").unlink()
    return run


def assert_a_good_trace_that_just_ends(path):
    trace = load(path)
    assert trace.damage is None and trace.end is None
    assert [step.index for step in trace.steps] == list(range(len(trace.steps)))
    assert len(trace.steps) >= 3
    assert path.stat().st_size > SMALL * 0.8, "it was not the disk that ended it"
    assert {finding.rule for finding in faults(examine(trace))} == {"incomplete"}


def test_a_full_disk_ends_the_run_in_one_sentence_and_the_engine_goes_on(
    on_small_disk, tiny_folders, tmp_path
):
    target, draft = map(str, tiny_folders["llama"])
    options = EngineOptions(target=target, draft=draft, device="cpu")
    done = on_small_disk(sys.executable, "-c", APP, msgspec.json.encode(options).decode())
    assert done.returncode == 0, done.stderr
    full, late, elsewhere = json.loads(done.stdout)
    assert full == FULL
    assert "No space left on device" in late and "\n" not in late
    assert_a_good_trace_that_just_ends(tmp_path / "run.ddviz")
    assert elsewhere is None and load(tmp_path / "elsewhere.ddviz").end is not None


def test_record_on_a_full_disk_exits_1_with_one_sentence(on_small_disk, tiny_folders, tmp_path):
    target, draft = tiny_folders["llama"]
    settings = ["--prompt", "hello", "--out", "small/run.ddviz", "--max-tokens", 300, "--temperature", 1]
    settings += ["--seed", 1]  # as APP: a run that meets no stop token before the disk is full
    pair = ["--target", target, "--draft", draft, "--device", "cpu"]
    done = on_small_disk(sys.executable, "-m", "ddviz.cli", "record", *settings, *pair)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"ddviz: {FULL}"]
    assert_a_good_trace_that_just_ends(tmp_path / "run.ddviz")
