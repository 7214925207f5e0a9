"""Memory that the scheduler's process and the writers' share: slots of one size, each taken or free.

One process takes slots, the others free them; a byte a slot and reader says which, and nobody waits.
"""

import mmap
import os

FREE, TAKEN = b"\0", b"\1"


class Slots:
    def __init__(self, count: int, size: int, descriptor: int | None = None, readers: int = 1) -> None:
        """count slots of `size` bytes. descriptor: of the memory that another process made; None: make it."""
        self.count, self.size, self.readers = count, size, readers
        self.descriptor = os.memfd_create("ddviz-trace") if descriptor is None else descriptor
        length = max(1, count * (size + readers))
        if descriptor is None:
            os.ftruncate(self.descriptor, length)
        self.memory = mmap.mmap(self.descriptor, length)  # the slots, then their states
        self._next = 0

    def take(self) -> int | None:
        """A slot that no reader has, for all of them; None where there is none."""
        for i in range(self.count):
            slot = (self._next + i) % self.count
            states = self._states(slot)
            if self.memory[states : states + self.readers] == FREE * self.readers:
                self.memory[states : states + self.readers] = TAKEN * self.readers
                self._next = slot + 1
                return slot
        return None

    def free(self, slot: int, reader: int = 0) -> None:
        """This reader is done with the slot."""
        states = self._states(slot)
        self.memory[states + reader : states + reader + 1] = FREE

    def read(self, slot: int, size: int) -> bytes:
        """The first `size` bytes of a slot, a copy."""
        return self.memory[slot * self.size : slot * self.size + size]

    def _states(self, slot: int) -> int:
        return self.count * self.size + slot * self.readers
