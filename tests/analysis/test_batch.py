"""Joining the traces of one server by batch id, and what no batch may hold."""

import os
from datetime import UTC, datetime

import msgspec
import pytest

from ddviz.analysis.batch import clashes, may_share, places_in
from ddviz.trace import load
from tests.batches import write_batch


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return write_batch(tmp_path_factory.mktemp("batch"))


def test_a_trace_names_its_place_in_every_batch(batch):
    trace, places = load(batch[1]), places_in(batch[1])
    assert places.by_batch == {step.batch.id: (i, step.batch) for i, step in enumerate(trace.steps)}
    assert places.models == ("hash", "noisy hash")


def test_a_file_cut_short_counts_as_far_as_it_is_whole(batch, tmp_path):
    data, whole = batch[1].read_bytes(), places_in(batch[1])
    cut = tmp_path / "cut.ddviz"
    cut.write_bytes(data[: len(data) * 2 // 3])
    some = places_in(cut).by_batch
    assert 0 < len(some) < len(whole.by_batch)
    assert some.items() <= whole.by_batch.items()


@pytest.mark.parametrize("content", [b"", b"no trace", b"\x28\xb5\x2f\xfd"])
def test_what_is_no_trace_has_no_places(tmp_path, content):
    (tmp_path / "x.ddviz").write_bytes(content)
    assert places_in(tmp_path / "x.ddviz") is None
    assert places_in(tmp_path / "gone.ddviz") is None


def test_rows_of_one_batch_find_each_other(batch):
    own, other = places_in(batch[0]), places_in(batch[3])
    step = load(batch[0]).steps[2]
    place = may_share(own, other, step.batch)
    assert (place.step, place.batch.id, place.batch.row) == (2, step.batch.id, 3)
    assert may_share(own, own, step.batch) is None, "a row is no neighbour of itself"


@pytest.mark.parametrize("other", [{"size": 5}, {"q_len": 99}, {"row": 0}, {"row": 7}, {"id": 12345}])
def test_another_batch_under_the_same_number_is_no_neighbour(batch, other):
    own, places = places_in(batch[0]), places_in(batch[3])
    step = load(batch[0]).steps[2]
    changed = {
        place.batch.id: place._replace(batch=msgspec.structs.replace(place.batch, **other))
        for place in places.by_batch.values()
    }
    by_batch = {p.batch.id: p for p in changed.values()} if "id" in other else changed
    assert may_share(own, places._replace(by_batch=by_batch), step.batch) is None


def test_another_server_is_no_neighbour(batch):
    own, other = places_in(batch[0]), places_in(batch[3])
    step = load(batch[0]).steps[2]
    engine = msgspec.structs.replace(other.engine, version="1")
    assert may_share(own, other._replace(engine=engine), step.batch) is None
    assert may_share(own, other._replace(models=("hash", None)), step.batch) is None


def test_a_server_that_began_after_this_trace_ended_is_another(batch):
    """Its forwards are counted from the start again."""
    os.utime(batch[0], (1e9, 1e9))  # 2001
    own, other, step = places_in(batch[0]), places_in(batch[3]), load(batch[0]).steps[2]
    assert may_share(own, other, step.batch) is not None
    later = other._replace(created=datetime(2001, 9, 10, tzinfo=UTC))
    assert may_share(own, later, step.batch) is None


# What clashes ---------------------------------------------------------------------------------------


def steps_of(batch):
    return {row: load(path).steps[1] for row, path in batch.items()}


def test_a_right_batch_holds_no_clash(batch):
    assert clashes(steps_of(batch)) == []


def test_an_index_in_a_neighbours_row_is_found(batch):
    steps = steps_of(batch)
    width = steps[1].batch.q_len
    index = list(steps[1].retrieve.index)
    index[4] = 3 * width
    steps[1] = msgspec.structs.replace(
        steps[1], retrieve=msgspec.structs.replace(steps[1].retrieve, index=index)
    )
    assert clashes(steps) == [f"retrieve_index[4] of row 1 is {3 * width}, which is row 3's"]


def test_an_accepted_index_of_nobody_is_found(batch):
    steps = steps_of(batch)
    accept = msgspec.structs.replace(steps[0].accept, index=[0, 4 * steps[0].batch.q_len])
    steps[0] = msgspec.structs.replace(steps[0], accept=accept)
    assert clashes(steps) == [f"accept_index[1] of row 0 is {4 * steps[0].batch.q_len}, which is no row's"]


def test_a_slot_of_two_owners_is_found(batch):
    steps = steps_of(batch)
    slots = list(steps[3].slots)
    slots[5] = steps[1].slots[2]
    steps[3] = msgspec.structs.replace(steps[3], slots=slots)
    assert clashes(steps) == [f"slot {slots[5]} holds node 5 of row 3 and node 2 of row 1"]


def test_what_pad_nodes_share_is_no_clash(tmp_path):
    steps = steps_of(write_batch(tmp_path, padding=2))
    slots = list(steps[3].slots)
    slots[-1] = steps[1].slots[0]
    steps[3] = msgspec.structs.replace(steps[3], slots=slots)
    assert clashes(steps) == []
