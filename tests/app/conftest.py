"""A session on a FakeEngine, its folders in tmp_path."""

import socket
import time

import pytest

from ddviz.app.session import Session
from ddviz.app.traces import Registry
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def folders(tmp_path):
    samples, runs = tmp_path / "samples", tmp_path / "runs"
    samples.mkdir()
    runs.mkdir()
    return samples, runs


@pytest.fixture
def engine():
    engine = FakeEngine(step_s=0.01)
    yield engine
    engine.close()


@pytest.fixture
def session(engine, folders):
    return Session(engine, Registry(*folders))


def wait_until(holds, seconds: float = 60) -> None:
    """Fails where `holds()` does not come true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
