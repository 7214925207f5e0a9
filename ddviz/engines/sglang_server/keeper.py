"""The process between the app and a server: it ends the server when the app ends, however the app ends.

    python -m ddviz.engines.sglang_server.keeper GRACE_S COMMAND...

In:  stdin, which nobody writes to: its end is the word to stop.
Out: the command's stdout and stderr, its exit code (128 + the signal that ended it, as in a shell).

A server is many processes in one group. The group gets SIGTERM, after GRACE_S seconds SIGKILL; and SIGKILL at
once where the first of them ended by itself: what it leaves would hold the GPU.
"""

import os
import signal
import subprocess
import sys
import threading


def keep(command: list[str], grace_s: float) -> int:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_end_with_stdin, args=(server, grace_s), daemon=True).start()
    code = server.wait()
    _signal(server, signal.SIGKILL)
    return 128 - code if code < 0 else code


def _end_with_stdin(server: subprocess.Popen[bytes], grace_s: float) -> None:
    os.read(0, 1)  # NOTE: not sys.stdin, whose lock a thread that waits would hold as Python ends
    _signal(server, signal.SIGTERM)
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        _signal(server, signal.SIGKILL)


def _signal(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(server.pid, number)
    except ProcessLookupError:
        pass  # all of them are gone


if __name__ == "__main__":
    sys.exit(keep(sys.argv[2:], float(sys.argv[1])))
