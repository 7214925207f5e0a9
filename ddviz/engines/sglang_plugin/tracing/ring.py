"""Shared, pinned memory between the device and the writers' processes.

In:  the tensors of one step, on the device.
Out: their bytes in a slot that the writers' processes read, a little later.
Not here: what they mean (reading.py, steps.py), what a slot and a turn are (slots.py).

    forward stream     ... verify, commit | pack into one tensor, write it to a slot | next step ...
    scheduler          launches                                      takes the result: tells the writers
    writers' processes                                               read, free the slot

What a captured stage packs the device writes itself (`write`), within that graph: it counts the turns as the
host does, and the turn is among the bytes, so that a writer sees it if they ever part. What is traced without
graphs the host has copied (`put`). Both are on the forward stream: they take some microseconds, fewer than
the events that would order them on a stream of their own.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ddviz.engines.sglang_plugin.tracing.jobs import Array, Layout
from ddviz.engines.sglang_plugin.tracing.slots import WORD, Slots

_LANES = 1024
_PINNED: list[torch.Tensor] = []  # kept: memory that were unmapped as it is would stay pinned to CUDA


class Sent(NamedTuple):
    """A step on its way to a slot."""

    turn: int
    layout: Layout


class Ring:
    """Puts steps into slots: all of a server by `write`, or all by `put`. One thread's alone."""

    def __init__(self, slots: Slots, device: torch.device | str) -> None:
        """RuntimeError where the memory cannot be pinned: the device could not write there."""
        self.slots = slots
        self._memory = torch.frombuffer(slots.memory, dtype=torch.uint8)
        if torch.device(device).type == "cuda":
            _pin(self._memory)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)  # as the device counts

    def has_room(self) -> bool:
        """Whether the next turn's slot is free, by passing over those that a reader still has."""
        ahead = self.slots.ahead()
        if ahead:
            self.slots.turn += ahead
            self.turn.add_(ahead)
        return ahead is not None

    def write(self, packed: torch.Tensor) -> None:
        """Bytes on the device, whole words, to the slot of `turn`, which goes on. To be captured in a graph;
        the host, which has made sure of room, takes the turn when it has launched it. ValueError where a slot
        is too small.
        """
        self._require_fit(packed.numel())
        words = packed.view(torch.int64)
        blocks = triton.cdiv(words.numel(), _LANES)
        _write[(blocks,)](
            words, words.numel(), self._words(), self.slots.size // WORD, self.slots.count, self.turn, _LANES
        )
        _count[(1,)](self.turn, num_warps=1)

    def recount(self) -> None:
        """The device goes on where the host is, after an error between them."""
        self.turn.fill_(self.slots.turn)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> Sent | None:
        """Begin to copy a step, of its traced rows. None where all slots are taken; ValueError: too small."""
        layout, piece = self._packed(Layout.of(()), tensors)
        if not self.has_room():
            return None
        self._copy(self.slots.turn, 0, piece)
        return Sent(self.slots.take(), layout)

    def add(self, sent: Sent, tensors: Mapping[str, torch.Tensor]) -> Sent:
        """Begin to copy more of a step, of its traced rows. ValueError where its slot is too small."""
        layout, piece = self._packed(sent.layout, tensors)
        self._copy(sent.turn, sent.layout.size, piece)
        return Sent(sent.turn, layout)

    def _packed(self, before: Layout, tensors: Mapping[str, torch.Tensor]) -> tuple[Layout, torch.Tensor]:
        own = (array_of(name, tensor, whole=False) for name, tensor in tensors.items())
        layout = Layout.of((*before.arrays, *own))
        self._require_fit(layout.size)
        return layout, torch.cat([as_bytes(tensor) for tensor in tensors.values()])

    def _copy(self, turn: int, offset: int, piece: torch.Tensor) -> None:
        at = self.slots.first(turn) + offset
        self._memory[at : at + piece.numel()].copy_(piece, non_blocking=True)

    def _require_fit(self, size: int) -> None:
        if size > self.slots.size:
            raise ValueError(f"{size} bytes do not fit into a slot of {self.slots.size}")

    def _words(self) -> torch.Tensor:
        return self._memory[: self.slots.count * self.slots.size].view(torch.int64)


def _pin(memory: torch.Tensor) -> None:
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(status) != 0:
        raise RuntimeError(f"the memory for traces could not be pinned: CUDA error {int(status)}")
    _PINNED.append(memory)


def array_of(name: str, tensor: torch.Tensor, whole: bool) -> Array:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Array(name, tuple(tensor.shape), dtype, tensor.numel() * tensor.element_size(), whole)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)  # one element counts as contiguous whatever its stride, and then has no bytes
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(
        torch.uint8
    )


@triton.jit(do_not_specialize=["size"])
def _write(
    words,
    size,
    slots_out,  # in the host's memory
    slot_size: tl.constexpr,
    count: tl.constexpr,
    turn,
    LANES: tl.constexpr,  # noqa: N803 - Triton's constants are capitals
):
    at = tl.program_id(0) * LANES + tl.arange(0, LANES)
    first = tl.load(turn) % count * slot_size  # as Slots.first has it
    tl.store(slots_out + first + at, tl.load(words + at, mask=at < size), mask=at < size)


@triton.jit
def _count(turn):
    tl.store(turn, tl.load(turn) + 1)
