"""An EAGLE drafter for a Llama target, fitted in seconds: one linear map, and a layer that does nothing.

EAGLE guesses the target's next feature (its last hidden state, after the final norm) from the feature before
and the token that came out of it. Here the guess is the least-squares map of the two. It is no good drafter,
but its trees are real ones: some drafts are accepted, most are not.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

TOKENS = 64  # that the target says after each prompt, for the map to be fitted on
RIDGE = 1e-3


def make(target: Path, prompts: list[list[int]], folder: Path) -> Path:
    """Folder of a drafter for the target in folder `target`, fitted on what it says after the prompts."""
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).to(device).eval()
    with torch.inference_mode():
        weight, bias = fit(*_pairs(model, _spoken(model, prompts)))
    save(target, weight.cpu(), bias.cpu(), folder)
    return folder


def fit(inputs: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [h, 2h] and bias [h] of the ridge regression from inputs [n, 2h] to wanted [n, h]."""
    inputs, wanted = inputs.double(), wanted.double()
    mean_in, mean_out = inputs.mean(0), wanted.mean(0)
    x, y = inputs - mean_in, wanted - mean_out
    squares = x.T @ x
    ridge = RIDGE * squares.diagonal().mean() * torch.eye(len(squares), device=x.device, dtype=x.dtype)
    weight = torch.linalg.solve(squares + ridge, x.T @ y).T
    return weight.float(), (mean_out - weight @ mean_in).float()


def save(target: Path, weight: torch.Tensor, bias: torch.Tensor, folder: Path) -> None:
    """A LlamaForCausalLMEagle of one layer whose attention and MLP add nothing; head and embeddings are the
    target's, which SGLang shares.
    """
    config = json.loads((target / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    shapes = {
        "self_attn.q_proj": (heads * head_dim, hidden),
        "self_attn.k_proj": (kv_heads * head_dim, hidden),
        "self_attn.v_proj": (kv_heads * head_dim, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    weights = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    weights["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    weights |= {"fc.weight": weight.contiguous(), "fc.bias": bias.contiguous()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    own = {
        "architectures": ["LlamaForCausalLMEagle"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps({**config, **own}))


def _spoken(model: torch.nn.Module, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Each prompt with the target's greedy continuation, all at once, padded on the left."""
    device, longest = model.device, max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64, device=device)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) :] = torch.tensor(prompt, device=device)
        mask[i, longest - len(prompt) :] = 1
    said = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False
    )
    return [said[i, longest - len(prompt) :] for i, prompt in enumerate(prompts)]


def _pairs(model: torch.nn.Module, texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """[embedding of token t+1, feature t] and feature t+1, for every t of every text."""
    inputs, wanted = [], []
    for ids in texts:
        features = model.model(input_ids=ids.unsqueeze(0)).last_hidden_state[0]
        embeddings = model.get_input_embeddings()(ids)
        inputs.append(torch.cat([embeddings[1:], features[:-1]], dim=-1))
        wanted.append(features[1:])
    return torch.cat(inputs), torch.cat(wanted)
