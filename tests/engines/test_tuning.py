"""The dtype is chosen by measuring once, and the choice is kept."""

import pytest

from ddviz.engines.base import EngineOptions
from ddviz.engines.torch_engine import tuning
from ddviz.engines.torch_engine.loading import load_engine, model_info


@pytest.fixture
def pair(tiny_folders, tmp_path, monkeypatch):
    monkeypatch.setenv("DDVIZ_CACHE", str(tmp_path))
    return list(map(str, tiny_folders["llama"]))


@pytest.mark.parametrize(("slow", "winner"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_the_faster_dtype_is_chosen_and_measured_once(pair, monkeypatch, slow, winner):
    measured = []

    def seconds(loaded, nodes, drafted):
        dtype = str(loaded.target.dtype).removeprefix("torch.")
        measured.append((dtype, nodes, drafted))
        return nodes * (2.0 if dtype == slow else 1.0)

    monkeypatch.setattr(tuning, "step_seconds", seconds)
    choice = tuning.choose(*pair)
    assert (choice.dtype, choice.budget, choice.topk_cap) == (
        winner,
        16,
        4,
    )  # a node costs as much as a token here
    assert choice.ar_tokens_per_s == 1.0
    count = len(measured)
    assert tuning.choose(*pair) == choice and len(measured) == count


def test_a_damaged_cache_is_measured_anew(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "step_seconds", lambda *args, **kwargs: 1.0)
    (tmp_path / "tuning.json").write_text("{not json")
    assert tuning.choose(*pair).budget == 64  # the largest tree wins where trees cost nothing


def test_auto_loads_the_choice_and_says_why(pair):
    engine = load_engine(EngineOptions(target=pair[0], draft=pair[1], device="cpu", dtype="auto"))
    info = model_info(engine)
    assert info.dtype in ("float32", "bfloat16") and f"{info.dtype}, budget" in info.note


def test_auto_without_a_drafter_is_float32(pair):
    engine = load_engine(EngineOptions(target=pair[0], device="cpu", dtype="auto"))
    assert model_info(engine).dtype == "float32" and engine.choice is None
