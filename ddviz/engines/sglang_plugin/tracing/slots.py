"""Memory that the scheduler's process and the writer's share: slots of one size, each taken or free.

One process takes slots, the other frees them; a byte a slot says which, and nobody waits.
"""

import mmap
import os

FREE, TAKEN = 0, 1


class Slots:
    def __init__(self, count: int, size: int, descriptor: int | None = None) -> None:
        """count slots of `size` bytes. descriptor: of the memory that another process made; None: make it."""
        self.count, self.size = count, size
        self.descriptor = os.memfd_create("ddviz-trace") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, max(1, count * (size + 1)))
        self.memory = mmap.mmap(self.descriptor, max(1, count * (size + 1)))  # the slots, then their states
        self._next = 0

    def take(self) -> int | None:
        """A slot that is free, None where all are taken."""
        for i in range(self.count):
            slot = (self._next + i) % self.count
            if self.memory[self.count * self.size + slot] == FREE:
                self.memory[self.count * self.size + slot] = TAKEN
                self._next = slot + 1
                return slot
        return None

    def free(self, slot: int) -> None:
        self.memory[self.count * self.size + slot] = FREE

    def read(self, slot: int, size: int) -> bytes:
        """The first `size` bytes of a slot, a copy."""
        return self.memory[slot * self.size : slot * self.size + size]
