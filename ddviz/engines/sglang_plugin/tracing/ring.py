"""Shared, pinned memory between the device and the writer's process.

In:  the tensors of one step, on the device.
Out: their bytes in a slot that the writer's process reads, a little later.
Not here: what they mean (reading.py, steps.py), what a slot is (slots.py).

    forward stream    ... verify, commit | pack into one tensor | next step ...
    copy stream                           wait |-- copy to a slot --| event
    scheduler         launches                                        takes the result: tells the writer
    writer's process                                                  reads, frees the slot
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

    def put(self, tensors: Mapping[str, torch.Tensor]) -> Copied | None:
        """Begin to copy the tensors to the host. None where every slot is taken or one is too small."""
        layout = [
            Array(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), t.numel() * t.element_size())
            for name, t in tensors.items()
        ]
        if sum(array.size for array in layout) > self.slots.size:
            return None
        slot = self.slots.take()
        if slot is None:
            return None
        packed = torch.cat([_as_bytes(t) for t in tensors.values()])
        begin = slot * self.slots.size
        return Copied(slot, layout, self._copy(packed, self._memory[begin : begin + packed.numel()]))

    def _copy(self, packed: torch.Tensor, into: torch.Tensor) -> torch.cuda.Event | None:
        if self._stream is None:
            into.copy_(packed)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(packed.device))
        with torch.cuda.stream(self._stream):
            into.copy_(packed, non_blocking=True)
            packed.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        return done


def _pin(memory: torch.Tensor) -> None:
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(status) != 0:
        raise RuntimeError(f"the memory for traces could not be pinned: CUDA error {int(status)}")


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
