"""An engine whose forwards are computed once for each input: thousands of short generations in seconds.

In:  a loaded TorchEngine.
Out: the same engine, its two models wrapped. What it samples, builds, accepts, packs and commits is its own.
Not here: any change of what is computed. The key of a forward is its whole input: the bytes of the committed
KV rows, not the tokens they should belong to. An engine that packs wrong rows reads wrong rows here, too.
"""

import copy
from hashlib import blake2b
from typing import Any

import torch

from ddviz.engines.torch_engine.drafter import Drafter
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.kv_cache import SlotCache
from ddviz.engines.torch_engine.models import Target


def remembering(engine: TorchEngine) -> TorchEngine:
    twin = copy.copy(engine)
    twin.target = RememberingTarget(engine.target, capture=engine.drafter is not None, engine=engine)
    if engine.drafter is not None:
        twin.drafter = RememberingDrafter(engine.drafter)
    return twin


class RememberingTarget:
    """A Target; what it does not override is the real one's."""

    def __init__(self, target: Target, capture: bool, engine: TorchEngine) -> None:
        self._target, self._engine, self._capture = target, engine, capture
        self._seen: dict[bytes, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}
        self._logits: dict[bytes, torch.Tensor] = {}
        self._features: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        cache: SlotCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = slice(cache.length, cache.length + len(token_ids))
        key = _digest(cache.rows[..., : cache.length, :], token_ids, positions, mask)
        if key not in self._seen:
            hidden = self._target.forward(token_ids, positions, cache, mask)
            features = self._engine.features() if self._capture else None
            self._seen[key] = hidden, cache.rows[..., rows, :].clone(), features
        hidden, written, self._features = self._seen[key]
        cache.rows[..., rows, :] = written
        return hidden

    def features(self, layer_ids: list[int]) -> torch.Tensor:
        assert self._features is not None
        return self._features

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        key = _digest(hidden)
        if key not in self._logits:
            self._logits[key] = self._target.logits(hidden)
        return self._logits[key]


class RememberingDrafter:
    """A Drafter. The rows that a block leaves behind are not written: a commit overwrites them."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._seen: dict[bytes, torch.Tensor] = {}
        self._context: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def append_context(self, features: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        begin = cache.length
        key = _digest(torch.tensor([begin]), features)  # the rows before do not enter into the new ones
        if key not in self._context:
            positions = self._drafter.append_context(features, cache)
            self._context[key] = positions, cache.rows[..., begin : cache.length, :].clone()
        else:
            cache.rows[..., begin : begin + len(features), :] = self._context[key][1]
            cache.advance(len(features))
        return self._context[key][0]

    def __call__(self, embeddings: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        key = _digest(cache.rows[..., : cache.length, :], embeddings)
        if key not in self._seen:
            self._seen[key] = self._drafter(embeddings, cache)
        return self._seen[key]


def _digest(*tensors: torch.Tensor | None) -> bytes:
    digest = blake2b(digest_size=16)
    for tensor in tensors:
        if tensor is None:
            digest.update(b"none")
        else:
            digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy())
    return digest.digest()
