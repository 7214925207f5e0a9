"""A trace made long of recorded steps is one that an engine could have written."""

import importlib.util
from pathlib import Path

import pytest

from ddviz.check.doctor import examine
from ddviz.errors import DdvizError
from ddviz.trace import load

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("make_big_trace", ROOT / "scripts" / "make_big_trace.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.mark.parametrize("name", ["quicksort-t0.6", "quicksort-greedy", "quicksort-dflash"])
def test_the_doctor_finds_a_long_trace_clean(tmp_path, name):
    source = load(ROOT / "traces" / f"{name}.ddviz")
    big = script.make_big_trace(source, tmp_path / "big.ddviz", 3 * len(source.steps))
    assert len(big.steps) == 3 * len(source.steps)
    assert examine(big) == []
    assert big.steps[-1].prefix_len > 2 * source.steps[-1].prefix_len


def test_a_trace_that_closes_no_ring_is_refused(tmp_path):
    source = load(ROOT / "traces" / "quicksort-t0.6.ddviz")
    source.steps._lines = source.steps._lines[:1]
    with pytest.raises(DdvizError, match="record a longer trace"):
        script.make_big_trace(source, tmp_path / "big.ddviz", 10)
