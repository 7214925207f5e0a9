"""Small random targets with a drafter each, for architectures that the demo pair has not.

    llama     8 heads, 4 KV heads: divides by two, for tensor parallelism
    deepseek  MLA and MoE of DeepSeek-V3 with its real head widths, few of everything else
    kimi      the same text model inside kimi_k25's wrapper; the vision tower has no weights and sees nothing

Random weights say nothing sensible, but an engine that is right says the same with a tree as without.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

VOCABULARY, CONTEXT, BLOCK = 512, 2048, 8
LAYERS = 4
SPREAD = 0.08  # of the weights: wide enough that logits are rarely tied


def make(kind: str, folder: Path) -> tuple[Path, Path]:
    """Target and drafter folders of one kind."""
    target = _llama(folder / "target") if kind == "llama" else _deepseek(folder / "target", kind)
    return target, _drafter(folder / "draft", target)


def _llama(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        initializer_range=SPREAD,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _deepseek(folder: Path, kind: str) -> Path:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        moe_intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_layer_freq=1,  # this and the next two: of the real models' config.json, which SGLang reads
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        q_lora_rank=128,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=CONTEXT,
        initializer_range=SPREAD / 2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    DeepseekV3ForCausalLM(config).save_pretrained(folder)
    if kind == "kimi":
        _wrap_as_kimi(folder)
    return folder


def _wrap_as_kimi(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    renamed = {f"language_model.{name}": weight for name, weight in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    vision = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    vision |= {"hidden_size": 64, "vt_hidden_size": 64}
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {**text, "model_type": "deepseek_v3"},
        "vision_config": {**vision, "text_hidden_size": text["hidden_size"]},
        "media_placeholder_token_id": VOCABULARY - 1,
        "eos_token_id": 0,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))


def _drafter(folder: Path, target: Path) -> Path:
    """A random DFlash drafter, 2 layers, that reads the target's layers 0 and 2."""
    shape = json.loads((target / "config.json").read_text())
    hidden = shape.get("text_config", shape)["hidden_size"]
    heads, head_dim, layers, features = 8, 32, 2, [0, 2]
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 512,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": head_dim,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": features},
        "dtype": "float32",
    }
    generator = torch.Generator().manual_seed(1)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * SPREAD

    weights = {"fc.weight": drawn(hidden, hidden * len(features)), "hidden_norm.weight": torch.ones(hidden)}
    weights["norm.weight"] = torch.ones(hidden)
    for i in range(layers):
        layer = f"layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{name}.weight"] = torch.ones(hidden)
        for name, width in (("q", heads), ("k", heads // 2), ("v", heads // 2)):
            weights[f"{layer}self_attn.{name}_proj.weight"] = drawn(width * head_dim, hidden)
        weights[f"{layer}self_attn.o_proj.weight"] = drawn(hidden, heads * head_dim)
        for name in ("q_norm", "k_norm"):
            weights[f"{layer}self_attn.{name}.weight"] = torch.ones(head_dim)
        for name in ("gate", "up"):
            weights[f"{layer}mlp.{name}_proj.weight"] = drawn(512, hidden)
        weights[f"{layer}mlp.down_proj.weight"] = drawn(hidden, 512)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
