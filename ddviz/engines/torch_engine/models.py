"""Loading: the target, its tokenizer, and a drafter that fits.

In:  folder or hub id of a Hugging Face causal LM of the Llama or Qwen family, and of a DFlash drafter.
Out: Target (forward, head, text to ids and back), Drafter.
Not here: the demo pair's download (fetch.py).
"""

import inspect
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import constants, get_session
from huggingface_hub.utils import logging as hub_logging
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ddviz.engines.token_bytes import token_bytes_function
from ddviz.engines.torch_engine.drafter import Drafter, check_fit, load_drafter
from ddviz.engines.torch_engine.kv_cache import SlotCache
from ddviz.engines.torch_engine.packed import can_pack, pack_linears
from ddviz.errors import RefusedError, counted

SUPPORTED = ("llama", "qwen2", "qwen3")
PACKED_ROWS = 17  # a verify at the default budget
HUB_ANSWERS_S = 5.0  # how long a hub may take to its first answer
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()  # "sequence longer than ...": prepare() says so, and refuses
hub_logging.set_verbosity_error()  # its retries: what fails in the end is told in one sentence


class Target:
    """A causal LM whose forward takes explicit positions, mask and slots.

    hidden_size, num_layers, vocab_size, context_length describe it; stop_ids end a text.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        config = model.config
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.vocab_size: int = config.vocab_size
        self.context_length: int = config.max_position_embeddings
        self.stop_ids = _stop_ids(model, tokenizer)
        self.token_bytes = token_bytes_function(tokenizer)
        self._cache_argument = _cache_argument(model.model)
        self.forwards = 0  # so far, prefill chunks counted
        self._features: dict[int, torch.Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self.model.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.model.embed_tokens.weight.dtype

    def capture(self, layer_ids: list[int]) -> None:
        """Keep the outputs of these layers at every forward: the drafter's features."""
        for layer in layer_ids:
            self.model.model.layers[layer].register_forward_hook(self._keeper(layer))

    def new_cache(self, capacity: int) -> SlotCache:
        config = self.model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return SlotCache(
            self.num_layers, config.num_key_value_heads, head_dim, capacity, self.dtype, self.device
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        cache: SlotCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run n tokens behind the committed rows; their KV lies in the cache, uncommitted.

        token_ids, positions  [n]
        mask                  [n, committed + n] bool, None = causal

        Returns hidden states [n, hidden].
        """
        self.forwards += 1
        output = self.model.model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=None if mask is None else self._additive(mask),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        return output.last_hidden_state[0]

    def features(self, layer_ids: list[int]) -> torch.Tensor:
        """Features [n, ids * hidden] of the last forward."""
        return torch.cat([self._features[layer] for layer in layer_ids], dim=-1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [n, V]."""
        return self.model.lm_head(hidden).float()

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.model.model.embed_tokens(token_ids)

    def encode(self, prompt: str, chat: bool) -> tuple[list[int], str]:
        """Token ids and the text they came from.

        Raises RefusedError where a chat template is asked for and absent.
        """
        if not chat:
            return self.tokenizer(prompt)["input_ids"], prompt
        if not self.tokenizer.chat_template:
            raise RefusedError(f"the target {self.name} has no chat template; switch it off (--no-chat)")
        messages = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"], text

    def _additive(self, mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill_(~mask, lowest)[
            None, None
        ]

    def _keeper(self, layer: int) -> Callable[..., None]:
        def keep(module: nn.Module, args: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            self._features[layer] = (output if isinstance(output, torch.Tensor) else output[0])[0]

        return keep


@dataclass(frozen=True, slots=True)
class Pair:
    target: Target
    drafter: Drafter | None


def load_pair(
    target: str,
    draft: str | None,
    dtype: str = "float32",
    device: str = "auto",
    draft_dtype: str | None = None,
) -> Pair:
    """Load a target and, unless `draft` is None, a drafter that fits it.

    target, draft   folders or hub ids
    dtype           "float32" or "bfloat16"; draft_dtype likewise, default the same
    device          "cpu", "cuda", "cuda:1" or "auto" (cuda where there is one)

    Raises RefusedError with one sentence where that does not work.
    """
    torch_device = _device(device)
    loaded = _load_target(target, DTYPES[dtype], torch_device)
    drafter = None
    if draft is not None:
        drafter = load_drafter(_folder_of(draft), DTYPES[draft_dtype or dtype], torch_device)
        check_fit(drafter, loaded)  # type: ignore[arg-type]
        loaded.capture(drafter.target_layer_ids)
    for model in (loaded.model, drafter):
        if model is not None and torch_device.type == "cpu" and can_pack(model.dtype):
            pack_linears(model, rows=PACKED_ROWS)
    return Pair(loaded, drafter)


def device_name(device: torch.device) -> str:
    """ "cpu: AMD EPYC, 2 threads", "cuda: NVIDIA H200"."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return f"cpu: {_cpu_model()}, {counted(torch.get_num_threads(), 'thread')}"


def _load_target(name: str, dtype: torch.dtype, device: torch.device) -> Target:
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise RefusedError(f"the target {name} could not be loaded: there is no such folder")
    offline = _is_out_of_reach(name)
    try:
        config = AutoConfig.from_pretrained(name, local_files_only=offline)
        if config.model_type not in SUPPORTED:
            raise RefusedError(
                f"{name}: model type {config.model_type} is not supported by the embedded engine "
                f"(supported: {', '.join(SUPPORTED)})"
            )
        if getattr(config, "use_sliding_window", False) and getattr(config, "sliding_window", None):
            raise RefusedError(f"{name}: targets with sliding-window attention are not supported")
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, attn_implementation="sdpa", local_files_only=offline
        )
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=offline)
    except (OSError, ValueError) as error:
        if offline:
            raise _offline_error("target", name) from None
        first_line = str(error).strip().splitlines()[0]
        raise RefusedError(f"the target {name} could not be loaded: {first_line:.300}") from None
    return Target(
        model.to(device).eval().requires_grad_(False),
        tokenizer,
        Path(name).name if Path(name).exists() else name,
    )


def _folder_of(name: str) -> Path:
    """A local folder, or a hub id's snapshot."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    offline, parts = _is_out_of_reach(name), ["*.json", "*.safetensors"]
    try:
        return Path(snapshot_download(name, allow_patterns=parts, local_files_only=offline))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if offline:
            raise _offline_error("drafter", name) from None
        first_line = str(error).strip().splitlines()[0]
        raise RefusedError(
            f"the drafter {name} is no folder, and no hub model that can be fetched: {first_line:.300}"
        ) from None


def _is_out_of_reach(name: str) -> bool:
    """Whether `name` is no folder and the hub does not answer one quick question.

    Asked first, since the hub's client tries each file six times, half a minute each, before it gives up.
    """
    if Path(name).is_dir():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_ANSWERS_S)
    except Exception:  # of httpx or of httpx2, as the hub's client has it; whatever it is, nothing answered
        return True
    return False


def _offline_error(part: str, name: str) -> RefusedError:
    return RefusedError(
        f"the {part} {name} is no folder and not in the hub's cache, and {constants.ENDPOINT} can't be "
        "reached; connect once, or pass a folder"
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise RefusedError(f"no such device: {name}; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RefusedError(
            f"device {name} was asked for, but this torch ({torch.__version__}) sees no CUDA GPU"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise RefusedError(f"device {name} was asked for, the GPUs here are cuda:0 to cuda:{last}")
    return device


def _cache_argument(model: nn.Module) -> str:
    """transformers renamed `past_key_values` to `cache` between 5.12 and 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _stop_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in [*ids, tokenizer.eos_token_id] if token is not None})


def _cpu_model() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", info)
    return found.group(1).strip() if found else platform.machine()
