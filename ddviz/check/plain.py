"""Plain forwards of a target and a DFlash drafter: what the audit holds an engine's numbers against.

In:  folders or hub ids, the dtype of the engine; texts as token ids.
Out: PlainTarget, PlainDrafter (the protocols of audit.py), log-probabilities in float32.
Not here: comparing (audit.py). Nothing of the engine's own forward is used: no cache, slots, mask, positions.

Weights are rounded to the engine's dtype, then computed with in float32: so what is left of a difference is
the engine's own rounding, not twice that.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ddviz.engines.torch_engine.drafter import Drafter, load_drafter
from ddviz.engines.torch_engine.fetch import DRAFTER_NAME, TARGET_NAME, demo_drafter, demo_target
from ddviz.errors import RefusedError
from ddviz.trace.schema import Header

TOKENS = 4096  # that one forward takes at most
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PlainTarget:
    """A causal LM of transformers that reads whole texts, each a row, padded at its end."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.float().eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @torch.inference_mode()
    def logprobs(
        self, prefix: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Per path: log-probabilities [1 + len(path), V] after the prefix and after each token; logsumexp."""
        longest = max(map(len, paths))
        at_once = max(1, TOKENS // (len(prefix) + longest))
        answers = []
        for begin in range(0, len(paths), at_once):
            some = paths[begin : begin + at_once]
            rows = [[*prefix, *path, *[0] * (longest - len(path))] for path in some]
            ids = torch.tensor(rows, device=self.device)
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=longest + 1).logits.float()
            sums = logits.logsumexp(dim=-1)
            table = (logits - sums[..., None]).cpu().numpy(), sums.cpu().numpy()
            answers += [tuple(part[i, : len(path) + 1] for part in table) for i, path in enumerate(some)]
        return answers  # type: ignore[return-value]

    @torch.inference_mode()
    def features(self, text: Sequence[int], layer_ids: Sequence[int]) -> torch.Tensor:
        """Outputs of these layers, [len(text), layers * hidden]."""
        kept: dict[int, torch.Tensor] = {}

        def keeper(layer: int):  # type: ignore[no-untyped-def]
            def keep(module: nn.Module, args: object, output: object) -> None:
                kept[layer] = (output[0] if isinstance(output, tuple) else output)[0]  # type: ignore[index]

            return keep

        layers = self.model.model.layers
        hooks = [layers[layer].register_forward_hook(keeper(layer)) for layer in layer_ids]
        try:
            ids = torch.tensor([list(text)], device=self.device)
            self.model(input_ids=ids, use_cache=False, logits_to_keep=1)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([kept[layer] for layer in layer_ids], dim=-1)


class PlainDrafter:
    """A DFlash drafter that is given a whole text's features at once."""

    def __init__(self, drafter: Drafter, target: PlainTarget) -> None:
        self.drafter, self.target = drafter.float(), target

    @torch.inference_mode()
    def logprobs(self, prefix: Sequence[int], root: int) -> NDArray[np.float32]:
        """[B-1, V] for the positions after the root, which follows the prefix."""
        drafter, model = self.drafter, self.target.model
        cache = drafter.new_cache(len(prefix) + drafter.block_size)
        drafter.append_context(self.target.features(prefix, drafter.target_layer_ids), cache)
        block = torch.full((drafter.block_size,), drafter.mask_token_id, device=self.target.device)
        block[0] = root
        hidden = drafter(model.get_input_embeddings()(block), cache)
        return model.get_output_embeddings()(hidden).float().log_softmax(dim=-1).cpu().numpy()


def load_plain(
    header: Header, target: str | None = None, draft: str | None = None, device: str | None = None
) -> tuple[PlainTarget, PlainDrafter | None, str]:
    """The models of a trace, or those that are named instead; and why there is no drafter, "" = there is one.

    Raises RefusedError where the target can't be had, or is not the trace's.
    """
    options = header.engine.options
    name = target or (str(demo_target()) if header.target == TARGET_NAME else header.target)
    plain = PlainTarget(load_target(name, str(options.get("dtype")), choose_device(device)))
    vocabulary = plain.model.config.vocab_size
    if header.vocab_size not in (None, vocabulary):
        raise RefusedError(
            f"the target {target or header.target} has a vocabulary of {vocabulary}, the trace's of "
            f"{header.vocab_size}; name the trace's target ({header.target}) with --target"
        )
    drafter, note = None, ""
    folder = _draft_folder(header, draft)
    if isinstance(folder, Path):
        dtype = DTYPES.get(str(options.get("draft_dtype") or options.get("dtype")), torch.float32)
        drafter = PlainDrafter(load_drafter(folder, dtype, plain.device), plain)
    else:
        note = folder
    return plain, drafter, note


def load_target(name: str, dtype: str, device: torch.device) -> nn.Module:
    """A target by folder or hub id, its weights rounded to `dtype` (an unknown one: as they are stored).

    Raises RefusedError where it can't be had.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise RefusedError(f"the target {name} could not be loaded: there is no such folder")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=DTYPES.get(dtype, "auto"), attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise RefusedError(
            f"the target {name} could not be loaded: {first_line:.200}; name its folder with --target"
        ) from None
    return model.to(device)


def _draft_folder(header: Header, draft: str | None) -> Path | str:
    """The drafter's folder, or why it is not compared."""
    if header.algorithm not in ("DDTREE", "DFLASH"):
        return f"the audit computes DFlash drafters again, this trace's algorithm is {header.algorithm}"
    if draft is None and header.draft == DRAFTER_NAME:
        return demo_drafter()
    folder = Path(draft or header.draft or "")
    if draft is not None and not folder.is_dir():
        raise RefusedError(f"the drafter {draft} could not be loaded: there is no such folder")
    if not (folder / "config.json").is_file():
        return f"the drafter {header.draft} is no folder here; name it with --draft"
    return folder


def choose_device(name: str | None) -> torch.device:
    if name in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(str(name))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise RefusedError(f"no such device here: {name}; use cpu, cuda or cuda:N") from None
    return device
