"""Shared, pinned memory between the device and the writers' processes.

In:  the tensors of one step, on the device.
Out: their bytes in a slot that the writers' processes read, a little later.
Not here: what they mean (reading.py, steps.py), what a slot is (slots.py).

    forward stream     ... verify, commit | pack into one tensor | copy to a slot | next step ...
    scheduler          launches                                      takes the result: tells the writers
    writers' processes                                               read, free the slot

The copy is on the forward stream: it takes some microseconds, fewer than the events that would order it on a
stream of its own.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from ddviz.engines.sglang_plugin.tracing.jobs import Array, Layout
from ddviz.engines.sglang_plugin.tracing.slots import Slots


class Copied(NamedTuple):
    """A step on its way to a slot."""

    slot: int
    layout: Layout


class Ring:
    """Puts steps into slots. Called from the scheduler's thread."""

    def __init__(self, slots: Slots, device: torch.device | str) -> None:
        """RuntimeError where the memory cannot be pinned: copies would then hold up the scheduler."""
        self.slots = slots
        self._memory = torch.frombuffer(slots.memory, dtype=torch.uint8)
        if torch.device(device).type == "cuda":
            _pin(self._memory)

    def put(
        self, tensors: Mapping[str, torch.Tensor], packed: tuple[Layout, torch.Tensor] | None = None
    ) -> Copied | None:
        """Begin to copy to the host. None where every slot is taken or one is too small.

        tensors  of the traced rows
        packed   of all rows, packed already
        """
        layout, pieces = Layout.of(()), []
        if packed is not None:
            layout, pieces = packed[0], [packed[1]]
        if tensors:
            own = (array_of(name, tensor, whole=False) for name, tensor in tensors.items())
            layout = Layout.of((*layout.arrays, *own))
            pieces.append(torch.cat([as_bytes(tensor) for tensor in tensors.values()]))
        if layout.size > self.slots.size:
            return None
        slot = self.slots.take()
        if slot is None:
            return None
        at = slot * self.slots.size
        for piece in pieces:
            self._memory[at : at + piece.numel()].copy_(piece, non_blocking=True)
            at += piece.numel()
        return Copied(slot, layout)


def _pin(memory: torch.Tensor) -> None:
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(status) != 0:
        raise RuntimeError(f"the memory for traces could not be pinned: CUDA error {int(status)}")


def array_of(name: str, tensor: torch.Tensor, whole: bool) -> Array:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Array(name, tuple(tensor.shape), dtype, tensor.numel() * tensor.element_size(), whole)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)  # one element counts as contiguous whatever its stride, and then has no bytes
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(
        torch.uint8
    )
