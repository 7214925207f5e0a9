"""Try the tools that take a server's URL on real SGLang servers. Prints PASS or FAIL and what they said.

    python scripts/gpu/server.py --target FOLDER [--draft FOLDER] [--out FOLDER] [-- WORDS FOR SGLANG]

Four servers on one GPU: DDTREE that traces, DDTREE with threshold_acc 0.5, DDTREE with biased coins, and
autoregression as their reference. `ddviz losslessness` must pass the first and fail the next two, and
`ddviz temptest` must pass the first.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddviz.engines.sglang_server.api import Api
from ddviz.errors import EngineError
from scripts.gpu.lab import DDVIZ, arguments

START_LIMIT_S, TOOL_LIMIT_S = 300.0, 240.0
COMMON = [
    "--attention-backend",
    "triton",
    "--sampling-backend",
    "pytorch",
    "--mem-fraction-static",
    "0.2",
    "--host",
    "127.0.0.1",
]
SIZE = ("--quick", "--generations", "6000")  # T = 1, which is what a 16-bit server can be held to
LOOSE = ("--speculative-accept-threshold-acc", "0.5")


class Server:
    """One server, in a process group of its own."""

    def __init__(self, name: str, out: Path, command: list[str], **environment: str) -> None:
        port = _free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", out / f"{name}.log"
        words = [sys.executable, "-m", "sglang.launch_server", *command, "--port", str(port)]
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **environment},
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Until it has generated. RuntimeError with the end of its log where it does not."""
        deadline = time.monotonic() + START_LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                Api(self.url).generate({"text": "1 2 3", "sampling_params": {"max_new_tokens": 2}})
                return
            except EngineError:
                time.sleep(1.0)
        raise RuntimeError(f"{self.log.name}: not ready\n{self.log.read_text()[-2000:]}")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def main() -> int:
    args = arguments(__doc__, Path("gpu-server"))
    plain = ["--model-path", args.target, *COMMON, *args.words]
    tree = [*plain, "--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", args.draft]
    traces = args.out / "traces"
    traces.mkdir(exist_ok=True)
    servers = {
        "tree": Server("tree", args.out, tree, DDVIZ_TRACE_DIR=str(traces)),
        "loose": Server("loose", args.out, [*tree, *LOOSE]),
        "biased": Server("biased", args.out, tree, DDVIZ_FAULT="biased_coin", DDVIZ_DEBUG="1"),
        "plain": Server("plain", args.out, plain),
    }
    failures: list[str] = []
    try:
        for server in servers.values():
            server.wait()
        reference = ("--reference", servers["plain"].url)
        for name, wanted in (("tree", 0), ("loose", 1), ("biased", 1)):
            words = ["losslessness", *SIZE, "--url", servers[name].url]
            failures += run(f"{name}, losslessness", [*words, *reference], wanted, args.out)
        words = ["losslessness", *SIZE, "--url", servers["tree"].url]
        embedded = ("--reference", "embedded", "--target", args.target)
        failures += run("tree, losslessness against its target", [*words, *embedded], 0, args.out)
        words = ["temptest", "--url", servers["tree"].url, "--trace-dir", str(traces), *reference]
        words += ["--log", str(servers["tree"].log), "--out", str(args.out / "runs")]
        failures += run("tree, temptest", words, 0, args.out)
    except RuntimeError as error:
        failures.append(str(error))
    finally:
        for server in servers.values():
            server.close()
    print("FAIL" if failures else "PASS", "server", *failures, sep="\n  ")
    return 1 if failures else 0


def run(title: str, words: list[str], wanted: int, out: Path) -> list[str]:
    """What failed: another exit code than the wanted one, or a 1 that is not of a difference."""
    begun = time.monotonic()
    try:
        done = subprocess.run([*DDVIZ, *words], capture_output=True, text=True, timeout=TOOL_LIMIT_S)
    except subprocess.TimeoutExpired:
        return [f"{title}: not done after {TOOL_LIMIT_S:.0f} s"]
    print(f"\n{title}: exit {done.returncode}, wanted {wanted} ({time.monotonic() - begun:.0f} s)")
    print(done.stdout + done.stderr[-2000:], flush=True)
    if done.returncode != wanted:
        return [f"{title}: exit {done.returncode}, wanted {wanted}"]
    found = "DIFFERS" in done.stdout
    return [] if found == bool(wanted) else [f"{title}: it did not find what it should"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
