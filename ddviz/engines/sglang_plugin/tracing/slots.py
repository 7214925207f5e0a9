"""Memory that the scheduler's process and the writers' share: slots of one size, taken in turn.

Turn k has slot k % count. One process takes slots, the others free them; a byte a slot and reader says which,
and nobody waits.
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
        length = max(1, count * (self.size + readers))
        if descriptor is None:
            os.ftruncate(self.descriptor, length)
        self.memory = mmap.mmap(self.descriptor, length)  # the slots, then their states
        self._turn = 0

    @property
    def full(self) -> bool:
        """Whether a reader still has the slot whose turn it is."""
        states = self._states(self._turn)
        return self.memory[states : states + self.readers] != FREE * self.readers

    def take(self) -> int | None:
        """The next turn, its slot taken for all readers; None where one of them has it still."""
        if self.full:
            return None
        turn, states = self._turn, self._states(self._turn)
        self.memory[states : states + self.readers] = TAKEN * self.readers
        self._turn += 1
        return turn

    def free(self, turn: int, reader: int = 0) -> None:
        """This reader is done with the slot."""
        states = self._states(turn)
        self.memory[states + reader : states + reader + 1] = FREE

    def read(self, turn: int, size: int) -> bytes:
        """The first `size` bytes of the slot, a copy."""
        first = turn % self.count * self.size
        return self.memory[first : first + size]

    def _states(self, turn: int) -> int:
        return self.count * self.size + turn % self.count * self.readers
