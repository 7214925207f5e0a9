"""Servers to start and to attach to: tests/fake_sglang.py, as a child process or in this one."""

import sys
import time

import pytest

from ddviz.engines.base import GenerateParams
from ddviz.engines.sglang_server import AttachedServer, OwnServer
from ddviz.engines.sglang_server.own import ServerOptions
from tests.fake_sglang import FakeServer

FAKE = (sys.executable, "-m", "tests.fake_sglang")


def request(**settings):
    return GenerateParams(**{"prompt": "hello there", "max_new_tokens": 40, **settings})


LONG = 100_000  # tokens; nobody waits for them


def wait_until(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def wait_for(engine, *states, seconds=30):
    deadline = time.monotonic() + seconds
    while engine.status().state not in states:
        assert time.monotonic() < deadline, f"still {engine.status()}, not {states}; {engine.log()[-3:]}"
        time.sleep(0.01)
    return engine.status()


@pytest.fixture
def start(tmp_path):
    """start("--fake-...") -> an OwnServer that was told to start; ended with the test."""
    engines = []

    def start(*extra, grace_s=5.0):
        engine = OwnServer(
            ServerOptions("target", "draft", extra=extra, launch=FAKE), tmp_path / "server", grace_s
        )
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def elsewhere(tmp_path):
    """elsewhere(step_s=...) -> a FakeServer that somebody else has started."""
    servers = []

    def elsewhere(traces=True, **settings):
        folder = tmp_path / "elsewhere"
        folder.mkdir(exist_ok=True)
        servers.append(FakeServer(folder if traces else None, **settings))
        return servers[-1]

    yield elsewhere
    for server in servers:
        server.close()


@pytest.fixture
def attach(tmp_path):
    """attach(server) -> an AttachedServer that was told to look for it."""
    engines = []

    def attach(url):
        engines.append(AttachedServer(url, tmp_path / "elsewhere", looks_s=0.1))
        return engines[-1]

    yield attach
    for engine in engines:
        engine.close()
