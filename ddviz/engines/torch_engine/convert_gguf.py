"""From a GGUF file to the Hugging Face folder that models.py loads: bf16 weights, config and tokenizer.

In:  a llama-architecture GGUF with a byte-level BPE tokenizer and tied embeddings, as SmolLM2 has them.
Out: config.json, generation_config.json, model.safetensors, tokenizer.json and its two companions.
Not here: where the file comes from (fetch.py).

The `gguf` package decodes the quantised blocks. What is left is what llama.cpp changed on the way in: names,
the order of the rows in q_proj and k_proj, and the tokenizer.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ddviz.errors import EngineError

SPECIAL_TOKEN = 3  # GGUF's token type "control"
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, out: Path, progress: Callable[[float], None] = lambda fraction: None) -> None:
    """Write the folder `out`, which must not exist. Raises EngineError for a GGUF of another family."""
    reader = gguf.GGUFReader(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    family = (facts["general.architecture"], facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if family != ("llama", "gpt2", "smollm"):
        raise EngineError(f"{source.name}: architecture and tokenizer are {family}, must be SmolLM2's")
    out.mkdir()
    save_file(_weights(reader, facts, progress), out / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(facts).save(str(out / "tokenizer.json"))
    for name, content in _json_files(facts).items():
        (out / name).write_text(json.dumps(content, indent=2))


def _weights(
    reader: gguf.GGUFReader, facts: dict[str, Any], progress: Callable[[float], None]
) -> dict[str, torch.Tensor]:
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights = {}
    for done, tensor in enumerate(reader.tensors):
        name, kind = _hugging_face_name(tensor.name)
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            values = _halves_apart(values, heads[kind])
        weights[name] = torch.from_numpy(np.array(values, order="C")).to(torch.bfloat16)
        progress((done + 1) / len(reader.tensors))
    return weights


def _hugging_face_name(name: str) -> tuple[str, str]:
    """blk.7.attn_q.weight -> (model.layers.7.self_attn.q_proj.weight, attn_q)."""
    match name.removesuffix(".weight").split("."):
        case ["token_embd"]:
            return "model.embed_tokens.weight", ""
        case ["output_norm"]:
            return "model.norm.weight", ""
        case ["blk", layer, kind] if kind in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight", kind
    raise EngineError(f"the GGUF holds a tensor that SmolLM2 has not: {name}")


def _halves_apart(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of q and k rows: it interleaves the two halves that RoPE rotates together.

    in a head of 2h rows   GGUF 0 h 1 h+1 2 h+2 ...   ->   Hugging Face 0 1 2 ... h h+1 h+2 ...
    """
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _tokenizer(facts: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE; the pre-tokenizer "smollm" parts digits one by one first."""
    tokens, merges = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.merges"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True, trim_offsets=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _json_files(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    tokens = facts["tokenizer.ggml.tokens"]
    ids = {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }
    names = {name.removesuffix("_id"): tokens[token] for name, token in ids.items()}
    names["unk_token"] = tokens[facts["tokenizer.ggml.unknown_token_id"]]
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "hidden_act": "silu",
            "hidden_size": facts["llama.embedding_length"],
            "head_dim": facts["llama.rope.dimension_count"],
            "intermediate_size": facts["llama.feed_forward_length"],
            "num_hidden_layers": facts["llama.block_count"],
            "num_attention_heads": facts["llama.attention.head_count"],
            "num_key_value_heads": facts["llama.attention.head_count_kv"],
            "max_position_embeddings": facts["llama.context_length"],
            "rms_norm_eps": _shortest(facts["llama.attention.layer_norm_rms_epsilon"]),
            "rope_theta": facts["llama.rope.freq_base"],
            "rope_scaling": None,
            "vocab_size": len(tokens),
            "tie_word_embeddings": True,
            **ids,
            "initializer_range": 0.041666666666666664,
            "pretraining_tp": 1,
            "use_cache": True,
            "torch_dtype": "bfloat16",
        },
        "generation_config.json": ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": facts["llama.context_length"],
            "chat_template": facts["tokenizer.chat_template"],
            "additional_special_tokens": [names["bos_token"], names["eos_token"]],
        },
        "special_tokens_map.json": names,
    }


def _shortest(value: float) -> float:
    """The shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
