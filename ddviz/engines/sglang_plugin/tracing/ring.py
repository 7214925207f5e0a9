"""Pinned memory between the device and the writer's thread.

In:  the tensors of one step, on the device.
Out: the same, as numpy arrays, in another thread, later.
Not here: what they mean (reading.py, steps.py).

    forward stream   ... verify, commit | pack into one tensor | next step ...
    copy stream                          wait |-- copy to a slot --| event
    writer's thread                                                 waits for the event, reads, frees the slot
"""

import queue
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch


class Field(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    size: int  # bytes


class Copied(NamedTuple):
    """A step on its way to the host. `arrays` waits for it; `Ring.free` gives its slot back."""

    slot: int
    layout: tuple[Field, ...]
    buffer: torch.Tensor  # [bytes] uint8 on the host
    done: torch.cuda.Event | None  # None: the device is the host

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of the arrays, so that the slot may be freed."""
        if self.done is not None:
            self.done.synchronize()
        raw = self.buffer.numpy()
        arrays, at = {}, 0
        for field in self.layout:
            values = np.frombuffer(raw[at : at + field.size].tobytes(), field.dtype)
            arrays[field.name] = values.reshape(field.shape)
            at += field.size
        return arrays


class Ring:
    """A number of slots of pinned memory. `put` runs on the scheduler's thread, `free` on the writer's."""

    def __init__(self, slots: int, slot_bytes: int, device: torch.device | str) -> None:
        self._cuda = torch.device(device).type == "cuda"
        self._buffers = [
            torch.empty(slot_bytes, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(slots)
        ]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(slots):
            self._free.put(slot)
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def put(self, tensors: Mapping[str, torch.Tensor]) -> Copied | None:
        """Begin to copy the tensors to the host. None where every slot is taken or one is too small."""
        layout = tuple(
            Field(name, tuple(t.shape), _numpy_dtype(t.dtype), t.numel() * t.element_size())
            for name, t in tensors.items()
        )
        size = sum(field.size for field in layout)
        try:
            slot = self._free.get_nowait()
        except queue.Empty:
            return None
        if size > self._buffers[slot].numel():
            self.free(slot)
            return None
        packed = torch.cat([_as_bytes(t) for t in tensors.values()])
        return Copied(slot, layout, self._buffers[slot], self._copy(packed, self._buffers[slot]))

    def free(self, slot: int) -> None:
        self._free.put(slot)

    def _copy(self, packed: torch.Tensor, buffer: torch.Tensor) -> torch.cuda.Event | None:
        if self._stream is None:
            buffer[: packed.numel()].copy_(packed)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(packed.device))
        with torch.cuda.stream(self._stream):
            buffer[: packed.numel()].copy_(packed, non_blocking=True)
            packed.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        return done


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("torch."))
