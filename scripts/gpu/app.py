"""Drive the app with SGLang as its engine, as a browser's page does. Prints PASS or FAIL and what it saw.

    python scripts/gpu/app.py --target FOLDER [--draft FOLDER] [--out FOLDER] [-- WORDS FOR SGLANG]

Starts `ddviz --engine sglang` (in an environment with ddviz[sglang]) and speaks the page's own protocol over
HTTP, for a GPU host has no browser: load, a greedy run, a smaller tree without a restart, pause, one step,
resume, stop, a server that is killed and comes back. Its traces are examined, and stay in --out.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddviz.check.doctor import examine, faults
from ddviz.trace import Trace, load
from scripts.gpu.checks import accept_length
from scripts.gpu.checks.samples import QUICKSORT
from scripts.gpu.lab import DDVIZ, arguments
from tests.app.http_page import HttpPage

PORT = 7979
START_LIMIT_S, LIMIT_S = 300.0, 60.0


class Page(HttpPage):
    """What the Live tab's page asks of the app; RuntimeError where it is refused."""

    def log(self) -> list[str]:
        lines: list[str] = self.ask(self.panel("Engine"), "status", log=True)["log"]
        return lines

    def press(self, action: str) -> None:
        if "error" in (answer := self.control(action)):
            raise RuntimeError(answer["error"])

    def begin(self, tokens: int, temperature: float = 0.0, budget: int = 16, topk_cap: int = 4) -> None:
        """Begin a run."""
        limits = {"Budget": budget, "Top-k cap": topk_cap, "Max tokens": tokens}
        bar = self.generate(**{"Prompt": QUICKSORT, "Temperature": temperature, **limits})
        if bar["error"]:
            raise RuntimeError(bar["error"])


class Drive:
    """What is tried, and what came of it."""

    def __init__(self, page: Page, runs: Path, app: subprocess.Popen[bytes]) -> None:
        self._page, self._runs, self._app = page, runs, app
        self.failures: list[str] = []

    def all(self) -> None:
        ready_s = self.wait("ready", START_LIMIT_S)
        now = self._page.status()
        self.say(f"ready after {ready_s:.0f} s: {now['message']}")
        self.say(f"model as the page knows it: {json.dumps(now['model'])}")
        self.run_whole()
        self.pause_step_stop()
        self.die_and_come_back()

    def run_whole(self) -> None:
        page = self._page
        page.begin(128)
        self.ran("greedy, 16-4", lambda t: t.header.budget == 16)
        page.begin(128, budget=4, topk_cap=2)
        self.ran("greedy, 4-2, without a restart", lambda t: (t.header.budget, t.header.topk_cap) == (4, 2))
        page.begin(128, temperature=1.0)
        self.ran("T = 1.0, 16-4", lambda t: t.steps[0].accept.kernel == "sampled")

    def pause_step_stop(self) -> None:
        page = self._page
        self.begin_long_run()
        page.press("pause")
        self.wait("paused")
        before = self.settled_steps()
        page.press("step")
        time.sleep(1.0)
        self.wait("paused")
        after = self.settled_steps()
        self.say(f"paused at step {before}, one step later at {after}")
        self.claim(before > 0 and after == before + 1, f"one step went from {before} to {after}")
        page.press("resume")
        time.sleep(0.5)
        self.claim(self.settled_steps(wait=False) > after, "it did not go on")
        page.press("stop")
        self.wait("ready")
        self.ran("stopped", lambda t: t.end.finish_reason == "stopped")

    def die_and_come_back(self) -> None:
        page = self._page
        self.begin_long_run()
        self.kill_server()
        seconds = self.wait("off")
        sentence = page.status()["message"].splitlines()[0]
        self.say(f"killed; {seconds:.1f} s later the app says: {sentence}")
        kept = len(load(self.newest()).steps)
        self.say(f"its trace keeps {kept} steps")
        self.claim(kept > 0, "the killed run left no steps")
        self.claim(bool(page.log()), "there is no log to read")
        page.press("restart")
        self.say(f"ready again after {self.wait('ready', START_LIMIT_S):.0f} s")
        page.begin(64)
        self.ran("greedy, after the restart", lambda t: True)

    def begin_long_run(self) -> None:
        self._page.begin(1500, temperature=1.0)
        self.wait("running")
        time.sleep(0.5)

    def wait(self, state: str, limit_s: float = LIMIT_S) -> float:
        """Seconds until the engine was in this state."""
        begun = time.monotonic()
        while (now := self._page.status())["state"] != state:
            if (
                now["state"] in ("failed", "off")
                or time.monotonic() - begun > limit_s
                or self._app.poll() is not None
            ):
                log = "\n".join(self._page.log()[-30:])
                raise RuntimeError(f"not {state} but {now['state']}: {now['message']}\n{log}")
            time.sleep(0.05)
        return time.monotonic() - begun

    def ran(self, what: str, holds: Callable[[Trace], bool]) -> None:
        """The current run's trace, once the engine is ready again: whole, clean, and as it should be."""
        self.wait("ready")
        trace = load(self.newest())
        deadline = time.monotonic() + 5
        while trace.end is None and time.monotonic() < deadline:
            time.sleep(0.2)
            trace = load(self.newest())
        findings, steps = faults(examine(trace)), list(trace.steps)
        length = accept_length(steps)
        self.say(f"{what}: {len(steps)} steps, accept length {length:.2f}, {len(findings)} findings")
        self.claim(trace.end is not None and len(steps) > 0, f"{what}: the trace is not whole")
        self.claim(not findings, f"{what}: {findings[:2]}")
        self.claim(holds(trace), f"{what}: not what was asked for")

    def settled_steps(self, wait: bool = True) -> int:
        """Steps in the current run's trace, once no more come; without waiting: now."""
        count, now = -1, len(load(self.newest()).steps)
        while wait and count != now:
            time.sleep(0.5)
            count, now = now, len(load(self.newest()).steps)
        return now

    def newest(self) -> Path:
        """The trace of the run that began last, as the viewer has it."""
        return max(self._runs.glob("*.ddviz"), key=lambda path: path.stat().st_mtime_ns)

    def kill_server(self) -> None:
        """The process that SGLang's scheduler is, or the server where there is none."""
        family = psutil.Process(self._app.pid).children(recursive=True)
        schedulers = [p for p in family if " ".join(p.cmdline()).startswith("sglang::scheduler")]
        (schedulers or family)[-1].kill()

    def say(self, line: str) -> None:
        print("  " + line, flush=True)

    def claim(self, holds: bool, failure: str) -> None:
        if not holds:
            self.failures.append(failure)
            self.say(f"FAILED: {failure}")


def main() -> int:
    args = arguments(__doc__, Path("gpu-app"))
    command = [*DDVIZ, "--port", str(PORT), "--runs", str(args.out), "--engine", "sglang"]
    command += ["--target", args.target, "--draft", args.draft, "--", *args.words]
    with (args.out / "app.log").open("wb") as log:
        app = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        drive = Drive(_open(f"http://127.0.0.1:{PORT}", app), args.out, app)
        drive.all()
        failures = drive.failures
    except Exception as error:
        failures = [f"{type(error).__name__}: {error}"]
    finally:
        app.terminate()
        try:
            app.wait(30)
        except subprocess.TimeoutExpired:
            app.kill()
            failures = [*failures, "the app did not end"]
    print("FAIL" if failures else "PASS", "app", *failures, sep="\n  ")
    return 1 if failures else 0


def _open(url: str, app: subprocess.Popen[bytes]) -> Page:
    """The page, once the app serves it."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            return Page(url)
        except httpx.TransportError:
            if app.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
