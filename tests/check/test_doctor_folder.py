"""Rules over the traces of a folder: requests that one server ran together.

Two requests share forwards 10, 11, 12 ... as rows 0 and 1 of batches of two; slots of row 1 are 4096 and up.
"""

import copy

import pytest

from ddviz.check.doctor import examine_path
from ddviz.trace import schema
from tests.synthetic import Setup, SyntheticEngine, recorded

FOLDER_RULES = {"shared-slots"}


class Row(SyntheticEngine):
    """A request of a server: each row has slots of its own."""

    def __init__(self, setup):
        super().__init__(setup)
        self.slot_table = self.slot_table + 4096 * setup.row


def server(**changes):
    """Events of the two requests, with as many steps."""
    for seed in range(100):
        rows = [
            Row(Setup(seed=seed + 100 * row, stop_token_ids=(), batch_size=2, row=row, **changes)).run()
            for row in (0, 1)
        ]
        if len(rows[0]) == len(rows[1]):
            return rows
    raise AssertionError("no two requests of one length")


def steps_of(events):
    return [event for event in events if isinstance(event, schema.Step)]


def write_over(step, slot):
    """Give the slot to the last node that was not accepted."""
    width = step.batch.q_len
    path = [flat % width for flat in step.accept.index]
    step.slots[max(node for node in range(width) if node not in path)] = slot


def findings_in(tmp_path, *rows):
    """Findings by name, of traces a.ddviz, b.ddviz ... in one folder."""
    for name, events in zip("abc", rows, strict=False):
        recorded(tmp_path / f"{name}.ddviz", events)
    return {path.stem: findings for path, findings in examine_path(tmp_path).items()}


def nothing(a, b):
    """Two clean requests."""


def a_slot_of_the_same_forward(a, b):
    write_over(steps_of(b)[2], steps_of(a)[2].slots[-1])


def a_slot_that_a_running_request_committed(a, b):
    write_over(steps_of(b)[3], steps_of(a)[0].commit.dst_slots[0])


def slots_of_a_request_that_ended(a, b):
    """Slots are free again after the last step of their request."""
    for step in steps_of(a)[3:]:
        a.remove(step)
    a[-1].steps, a[-1].finish_reason = 3, "stopped"
    a[-1].output_ids = [a[2].token, *(token for step in steps_of(a) for token in step.emitted)]
    write_over(steps_of(b)[3], steps_of(a)[0].commit.dst_slots[0])


def slots_of_a_request_that_is_prefilled_again(a, b):
    second = next(event for event in a[3:] if isinstance(event, schema.Prefill))
    retracted = a[a.index(second) - 1]
    write_over(steps_of(b)[retracted.index + 1], steps_of(a)[0].commit.dst_slots[0])


def the_same_slots_on_another_engine(a, b):
    b[0].engine = schema.EngineInfo(name="another", version="1")
    a_slot_of_the_same_forward(a, b)


def the_same_slots_in_batches_that_do_not_fit(a, b):
    """Two servers of one kind: both are row 0 of their forwards."""
    for step in steps_of(b):
        step.batch.row = 0
        step.retrieve.index = [flat - step.batch.q_len for flat in step.retrieve.index]
        step.accept.index = [flat - step.batch.q_len for flat in step.accept.index]
    a_slot_of_the_same_forward(a, b)


DEFECTS = [a_slot_of_the_same_forward, a_slot_that_a_running_request_committed]
CLEAN = [
    nothing,
    slots_of_a_request_that_ended,
    the_same_slots_on_another_engine,
    the_same_slots_in_batches_that_do_not_fit,
]


@pytest.mark.parametrize("plant", DEFECTS)
def test_a_slot_of_another_request_is_found_and_nothing_else(tmp_path, plant):
    a, b = copy.deepcopy(server(temperature=0.8))
    plant(a, b)
    found = findings_in(tmp_path, a, b)
    assert found["a"] == [], found
    assert {finding.rule for finding in found["b"]} == {"shared-slots"}, found
    (first, *_) = found["b"]
    assert first.step == (2 if plant is DEFECTS[0] else 3)
    assert first.node in (11, 12)
    assert "is one that a, step" in first.message
    alone = examine_path(tmp_path / "b.ddviz")  # a file alone has no neighbours
    assert list(alone.values()) == [[]]


@pytest.mark.parametrize("plant", CLEAN)
def test_the_rule_is_silent_where_slots_may_be_the_same(tmp_path, plant):
    a, b = copy.deepcopy(server(temperature=0.8))
    plant(a, b)
    assert findings_in(tmp_path, a, b) == {"a": [], "b": []}


def test_a_request_gives_its_slots_back_when_it_is_retracted(tmp_path):
    a, b = copy.deepcopy(server(temperature=0.8, retract_before=3))
    slots_of_a_request_that_is_prefilled_again(a, b)
    assert findings_in(tmp_path, a, b) == {"a": [], "b": []}
