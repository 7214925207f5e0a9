"""KV rows that never move by themselves: slot s is row s of every layer; a commit packs the accepted ones.

In:  keys and values, layer by layer, from a forward.
Out: views over the committed rows and the rows of the running step.
Not here: which rows are accepted (tree/accept.py).

    slots   [0, length)            committed, never touched
            [length, length + n)   this step: tree node i at length + i
            after commit(path)     the path's rows packed at [length, length + len(path)); then
                                   length += len(path), and the rest is free
"""

import torch
from transformers.cache_utils import Cache, DynamicLayer


class SlotLayer(DynamicLayer):
    """One layer's view of a SlotCache. `update` writes behind the committed rows and does not commit."""

    def __init__(self, cache: "SlotCache", keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.slot_cache = cache
        self.keys, self.values = keys, values  # [1, kv_heads, capacity, head_dim]
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):  # type: ignore[no-untyped-def]
        start = self.slot_cache.length
        end = start + key_states.shape[-2]
        self.keys[..., start:end, :] = key_states
        self.values[..., start:end, :] = value_states
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self) -> int:
        return self.slot_cache.length


class SlotCache(Cache):
    """Preallocated cache of one request.

    rows  [layers, 2 (key, value), 1, kv_heads, capacity, head_dim], one tensor, so that a commit is one copy
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = 0  # committed rows
        self.capacity = capacity
        self.rows = torch.zeros(layers, 2, 1, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        super().__init__(layers=[SlotLayer(self, keys, values) for keys, values in self.rows])

    def slots(self, n: int) -> torch.Tensor:
        """Slots [n] that the next n rows will take. They are this forward's until the next commit."""
        assert self.length + n <= self.capacity, f"{self.length = } + {n = } > {self.capacity = }"
        return torch.arange(self.length, self.length + n)

    def advance(self, n: int) -> None:
        """Commit the first n rows of the running step as they lie."""
        self.length += n

    def commit(self, slots: torch.Tensor, path: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pack the rows of the accepted path to the front of the step's slots and commit them.

        slots  [n] the step's slots
        path   [k] node indices, rising, path[0] = 0

        Returns (source, destination), slots [k] each.
        """
        source, destination = slots[path], slots[: len(path)]
        if not torch.equal(source, destination):
            moved = self.rows.index_select(
                -2, source.to(self.rows.device)
            )  # a copy: sources and targets overlap
            self.rows.index_copy_(-2, destination.to(self.rows.device), moved)
        self.advance(len(path))
        return source, destination
