"""Memory that the scheduler's process and the writers' share: slots of one size, taken in turn.

Turn k has slot k % count. One process takes slots, the readers' free them; a byte a slot and reader says
which, and nobody waits. A turn whose slot a reader still has is passed over while others are free.
"""

import mmap
import os

FREE, TAKEN = b"\0", b"\1"
WORD = 8  # bytes, which the device writes at once: a slot is whole words


class Slots:
    def __init__(self, count: int, size: int, descriptor: int | None = None, readers: int = 1) -> None:
        """count slots of `size` bytes or a few more. descriptor: of the memory that another process made;
        None: make it.
        """
        self.count, self.size, self.readers = count, size + -size % WORD, readers
        self.descriptor = os.memfd_create("ddviz-trace") if descriptor is None else descriptor
        length = count * (self.size + readers)
        if descriptor is None:
            os.ftruncate(self.descriptor, length)
        self.memory = mmap.mmap(self.descriptor, length)  # the slots, then their states
        self.turn = 0  # the next one

    def ahead(self) -> int | None:
        """How many turns from the next one on are to be passed over; None where every slot is taken."""
        for ahead in range(self.count):
            states = self._states(self.turn + ahead)
            if self.memory[states : states + self.readers] == FREE * self.readers:
                return ahead
        return None

    def take(self) -> int:
        """The next turn, for all readers; that its slot is free is the caller's to know."""
        turn, states = self.turn, self._states(self.turn)
        self.memory[states : states + self.readers] = TAKEN * self.readers
        self.turn += 1
        return turn

    def give_back(self, turn: int) -> None:
        """No reader will be told of it."""
        states = self._states(turn)
        self.memory[states : states + self.readers] = FREE * self.readers

    def free(self, turn: int, reader: int = 0) -> None:
        """This reader is done with the slot."""
        states = self._states(turn)
        self.memory[states + reader : states + reader + 1] = FREE

    def read(self, turn: int, size: int) -> bytes:
        """The first `size` bytes of the slot, a copy."""
        first = self.first(turn)
        return self.memory[first : first + size]

    def first(self, turn: int) -> int:
        """Where the slot begins."""
        return turn % self.count * self.size

    def _states(self, turn: int) -> int:
        return self.count * self.size + turn % self.count * self.readers
