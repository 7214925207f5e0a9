"""Stage 1 of 5, DRAFT -> build -> compile -> verify -> commit: the DFlash drafter.

In:  hidden states of the target's committed tokens ("features"), and a root token.
Out: logits for the B-1 positions after the root, all from one forward.
Not here: the tree (tree/build.py).

The drafter has no embeddings and no head of its own: it borrows the target's. Every layer attends from the
block [root, mask x (B-1)] to two kinds of keys: those made of the target's features (the context, committed
once, kept in a SlotCache) and those of the block itself, in both directions.
Source: DFlash, arXiv 2602.06036. Layout of the checkpoint: z-lab's DFlashDraftModel (model_type "qwen3").
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from ddviz.engines.torch_engine.kv_cache import SlotCache
from ddviz.errors import RefusedError


class DFlashAttention(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=config.attention_bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def keys_values(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [1, rows, hidden] -> two of [1, kv_heads, rows, head_dim]."""
        keys = self.k_norm(self._split(self.k_proj(x))).transpose(1, 2)
        values = self._split(self.v_proj(x)).transpose(1, 2)
        return apply_rotary_pos_emb(keys, keys, cos, sin)[0], values

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: SlotCache, layer: int
    ) -> torch.Tensor:
        queries = self.q_norm(self._split(self.q_proj(x))).transpose(1, 2)
        queries = apply_rotary_pos_emb(queries, queries, cos, sin)[0]
        keys, values = cache.layers[layer].update(*self.keys_values(x, cos, sin))
        attended = scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


class DFlashLayer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = DFlashAttention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: SlotCache, layer: int
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """A DFlash draft model.

    block_size         B: the root and B-1 drafted positions
    target_layer_ids   layers of the target whose outputs are the features
    mask_token_id      the token that stands for "to be drafted"
    """

    def __init__(self, config: Qwen3Config, name: str) -> None:
        super().__init__()
        settings = config.dflash_config
        self.config, self.name = config, name
        self.block_size: int = config.block_size
        self.target_layer_ids: list[int] = list(settings["target_layer_ids"])
        self.mask_token_id: int = settings["mask_token_id"]
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.num_hidden_layers))
        self.fc = nn.Linear(len(self.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(config)

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def new_cache(self, capacity: int) -> SlotCache:
        config = self.config
        return SlotCache(
            config.num_hidden_layers,
            config.num_key_value_heads,
            config.head_dim,
            capacity,
            self.dtype,
            self.norm.weight.device,
        )

    def append_context(self, features: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        """Commit the features [rows, ids * hidden] of newly committed target tokens.

        Returns their positions [rows].
        """
        context = self.hidden_norm(self.fc(features.to(self.dtype)))[None]
        positions = torch.arange(cache.length, cache.length + len(features), device=features.device)
        cos, sin = self.rotary(context, positions[None])
        for layer, slot_layer in zip(self.layers, cache.layers, strict=True):
            slot_layer.update(*layer.self_attn.keys_values(context, cos, sin))
        cache.advance(len(features))
        return positions

    def forward(self, embeddings: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        """Hidden states [B-1, hidden] of the positions after the root, which is at position cache.length.

        embeddings [B, hidden] of the block.
        """
        x = embeddings.to(self.dtype)[None]
        positions = torch.arange(cache.length, cache.length + len(embeddings), device=x.device)
        cos, sin = self.rotary(x, positions[None])
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, cache, index)
        return self.norm(x)[0, 1:]


def load_drafter(folder: Path, dtype: torch.dtype, device: torch.device) -> Drafter:
    """Load a DFlash checkpoint folder.

    Raises RefusedError where it is none, or of a kind that is not supported.
    """
    config = _read_config(folder)
    drafter = Drafter(config, folder.name).eval().requires_grad_(False)
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    missing, unexpected = drafter.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.startswith("rotary.")]
    if missing or unexpected:
        raise RefusedError(
            f"{folder}: its weights are not those of a DFlash drafter "
            f"(missing {missing[:3]}, unexpected {list(unexpected)[:3]})"
        )
    return drafter.to(device=device, dtype=dtype)


def _read_config(folder: Path) -> Qwen3Config:
    try:
        raw = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{folder}: no DFlash drafter there (config.json: {error})") from None
    if "dflash_config" not in raw or "block_size" not in raw:
        raise RefusedError(f"{folder}: not a DFlash drafter: config.json has no dflash_config and block_size")
    if "sliding_attention" in raw.get("layer_types", []):
        raise RefusedError(f"{folder}: drafters with sliding-window layers are not supported")
    raw.pop("model_type", None)
    return Qwen3Config(**raw)


def check_fit(drafter: Drafter, target: SimpleNamespace) -> None:
    """Raises RefusedError unless the drafter was made for a target of this shape.

    target: an object with name, hidden_size, num_layers, vocab_size.
    """
    config = drafter.config
    trained_for = getattr(config, "num_target_layers", None)
    problems = [
        (
            config.hidden_size != target.hidden_size,
            f"hidden size {config.hidden_size} != {target.hidden_size}",
        ),
        (config.vocab_size != target.vocab_size, f"vocabulary {config.vocab_size} != {target.vocab_size}"),
        (
            trained_for not in (None, target.num_layers),
            f"trained for {trained_for} layers, not {target.num_layers}",
        ),
        (
            max(drafter.target_layer_ids) >= target.num_layers,
            f"reads target layer {max(drafter.target_layer_ids)} of {target.num_layers}",
        ),
    ]
    wrong = [sentence for fails, sentence in problems if fails]
    if wrong:
        raise RefusedError(
            f"the drafter {drafter.name} does not fit the target {target.name}: {'; '.join(wrong)}; "
            "choose a drafter that was trained for this target, with --draft"
        )
