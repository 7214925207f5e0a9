"""Traces of one server's batch: requests that were verified together, each in its row."""

import dataclasses
from pathlib import Path

from tests.synthetic import Setup, SyntheticEngine, recorded

ROW_SLOTS = 4096  # of a request


class Row(SyntheticEngine):
    """A request in a row of a batch, its KV slots its own."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.slot_table = self.slot_table + ROW_SLOTS * setup.row


def write_batch(folder: Path, rows=(0, 1, 3), size=4, **more) -> dict[int, Path]:
    """NAME.ddviz of each row that was traced; in row 2 of 4 there is none."""
    setup = Setup(batch_size=size, temperature=0.8, max_new_tokens=20, stop_token_ids=(), **more)
    paths = {}
    for row in rows:
        paths[row] = folder / f"request-{'abcdefgh'[row]}.ddviz"
        events = Row(dataclasses.replace(setup, seed=40 + row, row=row)).run()
        recorded(paths[row], events)
    return paths
