"""What is sent arrives whole and in order, and sending never waits for the reader."""

import fcntl
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ddviz.engines.sglang_plugin.tracing import outbox
from ddviz.engines.sglang_plugin.tracing.outbox import PIPE_BYTES, Outbox

MESSAGES = [bytes([i % 251]) * (1 + 977 * i % 60_000) for i in range(200)]  # some 6 MB, far more than a pipe


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader:
        yield reader, os.fdopen(writing, "wb")


def test_a_slow_reader_gets_everything_in_order_and_holds_nobody_up(pipe):
    reader, writing = pipe
    sender = Outbox(writing)
    for message in MESSAGES:  # nobody reads yet: a write that waits would never return
        sender.send(message)
    assert sender.behind > 0
    got = bytearray()
    reading = threading.Thread(target=lambda: got.extend(reader.read()))
    reading.start()
    sender.close(30)
    reading.join(30)
    assert bytes(got) == b"".join(MESSAGES)


def test_the_first_message_goes_at_once_and_the_next_ones_together(pipe):
    reader, writing = pipe
    sender = Outbox(writing)
    sender.send(b"one")
    assert sender.behind == 0
    assert os.read(reader.fileno(), PIPE_BYTES) == b"one"
    with sender._lock:  # its thread waits, whatever the time
        sender._last_write_s = float("inf")
    sender.send(b"two")
    sender.send(b"three")
    assert sender.behind == 8
    with sender._lock:
        sender._last_write_s = 0.0
    assert select.select([reader], [], [], 10)[0]  # nobody sends, and it comes
    assert os.read(reader.fileno(), PIPE_BYTES) == b"twothree"
    sender.send(b"last")  # just after the others
    sender.close(10)
    assert reader.read() == b"last"


def test_a_long_message_goes_as_fast_as_it_is_read_whatever_the_pipe(pipe, monkeypatch):
    """Without a pause of its own after each pipeful: sixteen would take sixteen seconds."""
    monkeypatch.setattr(outbox, "MOST_DELAY_S", 1.0)
    reader, writing = pipe
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    monkeypatch.setattr(outbox, "PIPE_BYTES", 4096)
    sender, message = Outbox(writing), bytes(16 * 4096)
    begun, got = time.monotonic(), 0
    sender.send(message)
    while got < len(message):
        assert select.select([reader], [], [], 10)[0]
        got += len(os.read(reader.fileno(), PIPE_BYTES))
    assert time.monotonic() - begun < 8
    sender.close(10)


def test_a_reader_that_went_away_is_told_to_whoever_sends_next(pipe):
    reader, writing = pipe
    sender = Outbox(writing)
    for message in MESSAGES:
        sender.send(message)
    reader.close()
    deadline = time.monotonic() + 10
    while sender.behind:  # its thread finds out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        sender.send(b"more")


SENDS = """
import os, sys, time
from ddviz.engines.sglang_plugin.tracing.outbox import Outbox
outbox = Outbox(os.fdopen(int(sys.argv[1]), "wb"))
for i in range(1 << 30):
    outbox.send(i.to_bytes(4, "little"))
    os.pwrite(int(sys.argv[2]), int(time.monotonic() * 1e6).to_bytes(8, "little"), 8 * i)
    time.sleep(0.001)
"""


def test_a_killed_sender_loses_no_more_than_the_last_fifth_of_a_second(pipe, tmp_path):
    """It notes when it sent what; what the pipe holds after a SIGKILL is all but the newest of that."""
    reader, writing = pipe
    noted = os.open(tmp_path / "noted", os.O_RDWR | os.O_CREAT)
    command = [sys.executable, "-c", SENDS, str(writing.fileno()), str(noted)]
    root = Path(__file__).parents[3]
    sender = subprocess.Popen(command, pass_fds=[writing.fileno(), noted], cwd=root)
    writing.close()
    while os.fstat(noted).st_size < 8 * 500:
        assert sender.poll() is None
        time.sleep(0.01)
    sender.kill()
    sender.wait()
    got = len(reader.read()) // 4
    sent = os.pread(noted, os.fstat(noted).st_size, 0)
    times = [int.from_bytes(sent[at : at + 8], "little") / 1e6 for at in range(0, len(sent) - 7, 8)]
    assert got > 400 and times[-1] - times[min(got, len(times)) - 1] < 0.2
