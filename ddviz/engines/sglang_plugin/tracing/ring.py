"""Shared, pinned memory between the device and the writers' processes.

In:  the tensors of one step, on the device.
Out: their bytes in a slot that the writers' processes read, a little later.
Not here: what they mean (reading.py, steps.py), what a slot is (slots.py).

    forward stream     ... verify, commit | pack into one tensor | next step ...
    copy stream                            wait |-- copy to a slot --| event
    scheduler          launches                                        takes the result: tells the writers
    writers' processes                                                 read, free the slot
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from ddviz.engines.sglang_plugin.tracing.jobs import Array
from ddviz.engines.sglang_plugin.tracing.slots import Slots


class Copied(NamedTuple):
    """A step on its way to a slot."""

    slot: int
    layout: list[Array]
    done: torch.cuda.Event | None  # None: the device is the host

    def wait(self) -> None:
        """Until it is there; at once, where the step's own result is on the host already."""
        if self.done is not None:
            self.done.synchronize()


class Ring:
    """Puts steps into slots, on a stream of its own. Called from the scheduler's thread."""

    def __init__(self, slots: Slots, device: torch.device | str) -> None:
        """RuntimeError where the memory cannot be pinned: copies would then hold up the scheduler."""
        self.slots = slots
        self._memory = torch.frombuffer(slots.memory, dtype=torch.uint8)
        self._stream: torch.cuda.Stream | None = None
        if torch.device(device).type == "cuda":
            _pin(self._memory)
            self._stream = torch.cuda.Stream(device)

    def put(
        self, tensors: Mapping[str, torch.Tensor], packed: tuple[list[Array], torch.Tensor] | None = None
    ) -> Copied | None:
        """Begin to copy to the host. None where every slot is taken or one is too small.

        tensors  of the traced rows
        packed   of all rows, packed already; the caller may use this memory again after `hold`
        """
        layout = [array_of(name, tensor, whole=False) for name, tensor in tensors.items()]
        pieces = [torch.cat([as_bytes(tensor) for tensor in tensors.values()])] if tensors else []
        if packed is not None:
            layout, pieces = [*packed[0], *layout], [packed[1], *pieces]
        if sum(array.size for array in layout) > self.slots.size:
            return None
        slot = self.slots.take()
        if slot is None:
            return None
        return Copied(slot, layout, self._copy(pieces, slot * self.slots.size))

    def hold(self) -> None:
        """What comes next on this stream waits until all that was put has been read."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _copy(self, pieces: list[torch.Tensor], at: int) -> torch.cuda.Event | None:
        if self._stream is None:
            torch.cat(pieces, out=self._memory[at : at + sum(piece.numel() for piece in pieces)])
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for piece in pieces:
                self._memory[at : at + piece.numel()].copy_(piece, non_blocking=True)
                piece.record_stream(self._stream)
                at += piece.numel()
            done = torch.cuda.Event()
            done.record(self._stream)
        return done


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
