"""What is sent arrives whole and in order, and sending never waits for the reader."""

import os
import threading
import time

import pytest

from ddviz.engines.sglang_plugin.tracing.outbox import PIPE_BYTES, Outbox

MESSAGES = [bytes([i % 251]) * (1 + 977 * i % 60_000) for i in range(200)]  # some 6 MB, far more than a pipe


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader:
        yield reader, os.fdopen(writing, "wb")


def test_a_slow_reader_gets_everything_in_order_and_holds_nobody_up(pipe):
    reader, writing = pipe
    outbox = Outbox(writing)
    for message in MESSAGES:  # nobody reads yet: a write that waits would never return
        outbox.send(message)
    assert outbox.behind > 0
    got = bytearray()
    reading = threading.Thread(target=lambda: got.extend(reader.read()))
    reading.start()
    outbox.close(30)
    reading.join(30)
    assert bytes(got) == b"".join(MESSAGES)


def test_the_first_message_goes_at_once_and_the_next_ones_together(pipe):
    reader, writing = pipe
    outbox = Outbox(writing)
    outbox.send(b"one")
    assert outbox.behind == 0
    assert os.read(reader.fileno(), PIPE_BYTES) == b"one"
    with outbox._lock:  # its thread waits, whatever the time
        outbox._written = float("inf")
    outbox.send(b"two")
    outbox.send(b"three")
    assert outbox.behind == 8
    with outbox._lock:
        outbox._written = 0.0
    assert os.read(reader.fileno(), PIPE_BYTES) == b"twothree"  # nobody sends, and it comes
    outbox.close(10)
    assert reader.read() == b""


def test_a_reader_that_went_away_is_told_to_whoever_sends_next(pipe):
    reader, writing = pipe
    outbox = Outbox(writing)
    for message in MESSAGES:
        outbox.send(message)
    reader.close()
    deadline = time.monotonic() + 10
    while outbox.behind:  # its thread finds out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        outbox.send(b"more")
