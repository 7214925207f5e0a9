"""Marks on the stream that runs a step: when the device has passed them, and how long it took between them.

In:  marks.
Out: microseconds between them by name, once the device has passed the last one.
Not here: stage times of DDTREE, which the device stamps itself (../stamps.py); the one mark of such a step
comes after the last write to its slot. Making an event takes longer than recording it: clocks are reused.
"""

import torch


class Clock:
    """Of one step at a time."""

    def __init__(self, device: torch.device) -> None:
        """On a device other than CUDA it tells nothing."""
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._events: list[torch.cuda.Event] = []
        self._names: list[str] = []  # of what lies before each mark

    def mark(self, name: str = "") -> None:
        """What ran since the mark before was stage `name`; "" = no stage's."""
        if self._stream is None:
            return
        if len(self._names) == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[len(self._names)].record(self._stream)
        self._names.append(name)

    def wait(self) -> None:
        """Until the device has passed the last mark."""
        if self._names:
            self._events[len(self._names) - 1].synchronize()

    def times_us(self) -> dict[str, float]:
        """By stage; one that was interrupted is the sum of its parts. For after `wait`."""
        times: dict[str, float] = {}
        for i, name in enumerate(self._names):
            if name and i:
                span = 1000 * self._events[i - 1].elapsed_time(self._events[i])
                times[name] = round(times.get(name, 0.0) + span, 1)
        return times

    def reset(self) -> None:
        """For the next step."""
        self._names.clear()
