"""Loading: what fits, what does not, and raw token bytes."""

import json
import time

import pytest
import torch

from ddviz.engines.torch_engine.models import device_name, load_pair
from ddviz.errors import EngineError
from tests.tiny_pair import HOSTILE, save_drafter


@pytest.mark.parametrize("text", ["Hello, wörld\n\t x", "日本 🙂", *HOSTILE])
def test_token_bytes_add_up_to_the_text(llama, text):
    ids, _ = llama.target.encode(text, chat=False)
    assert b"".join(map(llama.target.token_bytes, ids)) == text.encode()


def test_ids_beyond_the_tokenizer_have_bytes_too(llama):
    assert llama.target.token_bytes(10**6) == "⟨1000000⟩".encode()


def test_the_chat_template_is_applied_on_request(llama):
    assert llama.target.encode("hi", chat=True)[1] == "<user>hi\n<assistant>"
    assert llama.target.encode("hi", chat=False)[1] == "hi"


@pytest.mark.parametrize(("threads", "words"), [(1, ", 1 thread"), (2, ", 2 threads")])
def test_the_name_of_a_processor_counts_its_threads(monkeypatch, threads, words):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert device_name(torch.device("cpu")).endswith(words)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 64}, "hidden size 64 != 32"),
        ({"num_target_layers": 9}, "trained for 9 layers, not 4"),
        ({"vocab_size": 99}, "vocabulary 99 != "),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 7]}}, "reads target layer 7 of 4"),
    ],
    ids=str,
)
def test_a_drafter_that_does_not_fit_is_refused(tiny_folders, tmp_path, changes, sentence):
    target = tiny_folders["llama"][0]
    drafter = save_drafter(tmp_path / "odd", target, **changes)
    with pytest.raises(EngineError, match=f"does not fit.*{sentence}"):
        load_pair(str(target), str(drafter))


@pytest.mark.parametrize("config", ["{}", "no json", '{"dflash_config": {}}'])
def test_a_folder_that_is_no_drafter_is_refused(tiny_folders, tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(EngineError, match=r"not? .*DFlash drafter"):
        load_pair(str(tiny_folders["llama"][0]), str(tmp_path))


def test_a_drafter_with_missing_weights_is_refused(tiny_folders, tmp_path):
    target, drafter = tiny_folders["llama"]
    config = json.loads((drafter / "config.json").read_text())
    odd = save_drafter(tmp_path / "short", target)
    (odd / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(EngineError, match="weights are not those of a DFlash drafter"):
        load_pair(str(target), str(odd))


def test_a_target_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(EngineError, match="could not be loaded"):
        load_pair(str(tmp_path), None)


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_a_hub_that_cannot_be_reached_is_one_quick_sentence(tiny_folders, part, monkeypatch, capfd):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    names = {"target": str(tiny_folders["llama"][0]), "drafter": None} | {part: "some/model"}
    start = time.monotonic()
    with pytest.raises(EngineError) as refused:
        load_pair(names["target"], names["drafter"])
    assert time.monotonic() - start < 10
    assert str(refused.value) == (
        f"the {part} some/model is no folder and not in the hub's cache, and http://127.0.0.1:9 can't be "
        "reached; connect once, or pass a folder"
    )
    assert "Retry" not in "".join(capfd.readouterr())


def test_a_model_of_another_family_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(EngineError, match="model type gpt2 is not supported"):
        load_pair(str(tmp_path), None)


def test_cuda_is_refused_where_there_is_none(tiny_folders):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(EngineError, match="sees no CUDA GPU"):
        load_pair(str(tiny_folders["llama"][0]), None, device="cuda")


def test_bfloat16_loads_and_the_drafter_may_differ(tiny_folders):
    pair = load_pair(*map(str, tiny_folders["llama"]), dtype="float32", draft_dtype="bfloat16")
    assert pair.target.dtype == torch.float32 and pair.drafter.dtype == torch.bfloat16
