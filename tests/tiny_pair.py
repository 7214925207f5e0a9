"""Tiny random targets and drafters, saved as Hugging Face folders: real code paths in milliseconds.

The vocabulary is the 256 bytes, a few whole words, some hostile ones, and the special tokens. A random
drafter guesses badly, so tests that need accepted nodes use budgets that cover much of the vocabulary.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from ddviz.engines.torch_engine.drafter import Drafter

HOSTILE = ["${alert(1)}", "{{x}}", "`", "</script>", "<img src=x onerror=alert(1)>", "\u202etxt", "<b>"]
SPECIAL = ["<|end|>", "<|mask|>"]
CHAT_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>"
LAYERS, BLOCK = 4, 6


def save_tokenizer(folder: Path) -> int:
    """A byte-level tokenizer without merges. Returns the size of its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = [to_bytes.pre_tokenize_str(word)[0][0] for word in HOSTILE]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*SPECIAL, *alphabet, *words]))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = to_bytes
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[0])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return len(vocabulary)


def save_target(folder: Path, family: str = "llama", seed: int = 0, context: int = 512) -> Path:
    """A random Llama or Qwen3 of 4 layers."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = save_tokenizer(folder)
    torch.manual_seed(seed)
    shape = dict(  # noqa: C408, keyword form as in the library's own examples
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=context,
        initializer_range=0.3, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config_class, model_class = kinds[family]
    model_class(config_class(**shape)).save_pretrained(folder)
    return folder


def save_drafter(folder: Path, target: Path, seed: int = 1, **changes: object) -> Path:
    """A random DFlash drafter that fits the target; `changes` override its configuration."""
    shape = json.loads((target / "config.json").read_text())
    config = {
        name: shape[name]
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
            "head_dim", "max_position_embeddings",
        )
    }  # fmt: skip
    config |= {
        "num_hidden_layers": 2, "rms_norm_eps": 1e-6, "attention_bias": False, "rope_theta": 10000.0,
        "num_target_layers": LAYERS, "block_size": BLOCK, "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2]},
    }  # fmt: skip
    config |= changes
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    drafter = Drafter(Qwen3Config(**config), folder.name)
    weights = {
        name: w.contiguous() for name, w in drafter.state_dict().items() if not name.startswith("rotary.")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
