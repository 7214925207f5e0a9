"""The dtype is chosen by measuring once, and the choice is kept."""

import pytest
from filelock import FileLock

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


def choice(tokens_per_s, ar_tokens_per_s):
    rates = {"tokens_per_s": tokens_per_s, "ar_tokens_per_s": ar_tokens_per_s}
    return tuning.Choice(dtype="float32", budget=16, topk_cap=4, **rates)


def test_the_sentence_is_true_where_autoregression_is_faster(pair, tmp_path):
    slow, fast = choice(5.2, 8.1).sentence, choice(40.0, 20.0).sentence
    assert slow.startswith(
        "the fastest tree as measured on this machine: float32, budget 16, cap 4, about 5 tokens/s; "
        "autoregressive about 8, which is faster here. "
    )
    assert "about 40 tokens/s; autoregressive about 20. " in fast
    assert f"to measure again, delete {tmp_path / 'tuning.json'} and start ddviz again" in slow


def test_of_two_processes_one_measures_and_the_other_reads_its_result(pair, tmp_path, monkeypatch):
    """The other one holds the lock, and has written its choice by the time it lets go."""
    key, theirs = None, choice(7.0, 3.0)

    def other_lets_go(sentence):
        told.append(sentence)
        tuning._write(tmp_path / "tuning.json", {key: theirs})
        held.release()

    monkeypatch.setattr(tuning, "measure", lambda *pair: choice(1.0, 1.0))
    tuning.choose(*pair)
    (key,) = tuning._read(tmp_path / "tuning.json")
    (tmp_path / "tuning.json").unlink()
    told, held = [], FileLock(tmp_path / ".tuning.lock")
    with held:
        assert tuning.choose(*pair, other_lets_go) == theirs
    assert told == ["another ddviz measures this machine: waiting for it"]


def test_without_a_place_for_the_cache_it_is_measured_all_the_same(pair, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DDVIZ_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tuning, "measure", lambda *pair: choice(1.0, 1.0))
    assert tuning.choose(*pair) == choice(1.0, 1.0)


def test_auto_loads_the_choice_and_says_why(pair):
    engine = load_engine(EngineOptions(target=pair[0], draft=pair[1], device="cpu", dtype="auto"))
    info = model_info(engine)
    assert info.dtype in ("float32", "bfloat16") and f"{info.dtype}, budget" in info.note


def test_auto_without_a_drafter_is_float32(pair):
    engine = load_engine(EngineOptions(target=pair[0], device="cpu", dtype="auto"))
    assert model_info(engine).dtype == "float32" and engine.choice is None
