"""One app on two cores under load: sessions that replay, sessions that generate, and what each of them sees.

    python scripts/bench_load.py [--replaying 20] [--generating 4] [--seconds 60] [--pages 1] [--out FILE]
    python scripts/bench_load.py --soak 30

The app is `ddviz` as a user starts it, held to two cores; the sessions speak HTTP as an open page does and
share those cores with it where the machine has no others. `--pages` are real ones in headless Chromium, which
draw in software there.

Checked: every step that a session is shown is, byte for byte, that of the trace it looks at; every generated
text is what its prompt gives when nothing else runs, and its beginning where it was stopped; no answer to a
session holds a word of another's prompt. Exit 1 where that does not hold, or memory or file handles grow.
Printed as JSON: latencies in ms, steps of each run between two of another, MB and handles over time.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from ddviz.trace import load
from ddviz.viewer.view import step_view
from tests.app.conftest import free_port
from tests.app.http_page import HttpPage
from tests.browser import FLAGS

ROOT = Path(__file__).parents[1]
LOOKS = (0.2, 0.8)  # seconds between two steps of one who replays
STATUS_S, POLL_S = 0.4, 0.125  # as control_bar.js and poll.js have them
SAMPLED_S = 5.0  # between two looks at memory and handles
TOKENS = 96  # of a generated text
PLACES = ("Tallinn", "Wellington", "Samarkand", "Reykjavik", "Valparaiso", "Timbuktu", "Ljubljana", "Hobart")
SLOW_MS = 200.0  # the median of a step change must be below
GROWS = 1.05  # the last third of a soak may hold so much more memory than its second
SPARE_HANDLES = 8


class Failures:
    """What did not hold. Thread-safe; sentences beyond the first hundred are only counted."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.checks = self.count = 0
        self._lock = threading.Lock()

    def check(self, holds: bool, sentence: str) -> None:
        with self._lock:
            self.checks += 1
            if not holds:
                self.count += 1
                self.sentences += [sentence] if self.count <= 100 else []


class Foreign:
    """Looks for words of others' prompts in the answers to one session."""

    def __init__(self, failures: Failures, who: str, own: str | None) -> None:
        self._failures, self._who = failures, who
        others = [place for place in PLACES if place != own]
        self._words = re.compile("|".join(others).encode(), re.IGNORECASE)

    def __call__(self, raw: bytes) -> None:
        found = self._words.search(raw)
        self._failures.check(found is None, f"{self._who} was told of {found and found[0]!r}")


# ---------------------------------------------------------------- the sessions


def replay(
    url: str, number: int, wanted: dict[str, list[str]], failures: Failures, latency: list[float], end: float
) -> None:
    """Open a sample, step through it, then the next one, until it is time."""
    page, rng = HttpPage(url), random.Random(number)
    samples = list(page.samples().items())
    page.seen = Foreign(failures, f"replaying session {number}", None)
    panel = page.panel("Recorded run")
    for title, trace in itertools.cycle(samples[number % len(samples) :] + samples[: number % len(samples)]):
        page.pick(trace)
        total = page.ask(panel, "poll", trace=trace, since=0)["total"]
        failures.check(total == len(wanted[title]), f"{title}: {total} steps")
        for index in range(total):
            if time.monotonic() > end:
                page.close()
                return
            start = time.perf_counter()
            raw = page.ask_raw(panel, "step", trace=trace, index=index)
            latency.append((time.perf_counter() - start) * 1e3)
            failures.check(digest(raw) == wanted[title][index], f"session {number}: {title} step {index}")
            time.sleep(rng.uniform(*LOOKS))


class Generated:
    """What came of a run, as its session saw it."""

    def __init__(self) -> None:
        self.text = ""
        self.end: str | None = None
        self.step_ms: list[float] = []
        self.stopped_ms: float | None = None


def generate(
    page: HttpPage, place: str, stop_after: int | None = None, end: float = float("inf")
) -> Generated:
    """Press Generate and watch the run to its end; press Stop after so many steps, or when it is time."""
    refused = page.generate(**{"Prompt": prompt_of(place), "Max tokens": TOKENS, "Seed": "1"})["error"]
    assert refused is None, refused
    trace, live = page.status()["run"]["trace"], page.panel("Live run")
    shown, seen, pressed, asked = Generated(), 0, 0.0, time.monotonic()
    while shown.end is None:
        time.sleep(POLL_S)
        answer = page.ask(live, "poll", trace=trace, since=seen)
        if answer["since"] == 0 and answer["first"] and not shown.text:
            shown.text = answer["first"]["text"]
        shown.text += "".join(token["text"] for step in answer["steps"] for token in step["emitted"])
        seen += len(answer["steps"])
        if answer["steps"]:
            start = time.perf_counter()
            page.ask_raw(live, "step", trace=trace, index=seen - 1)
            shown.step_ms.append((time.perf_counter() - start) * 1e3)
        shown.end = answer["end"] if not answer["more"] and seen == answer["total"] else None
        is_long = (stop_after is not None and seen >= stop_after) or time.monotonic() > end
        if is_long and seen and not pressed:
            pressed = time.perf_counter()
            page.control("stop")
        if time.monotonic() - asked > STATUS_S:
            page.status()
            asked = time.monotonic()
        assert not answer["damage"], answer["damage"]
    if pressed:
        shown.stopped_ms = (time.perf_counter() - pressed) * 1e3
    while page.status()["state"] != "ready":
        time.sleep(0.02)
    return shown


def keep_generating(
    url: str, place: str, alone: dict[str, str], failures: Failures, runs: list[Generated], end: float
) -> None:
    """Run after run of one prompt; every second is stopped."""
    page, odd = HttpPage(url), PLACES.index(place) % 2
    page.seen = Foreign(failures, f"the session of {place}", place)
    for number in itertools.count(1):
        if time.monotonic() > end:
            page.close()
            return
        run = generate(page, place, 5 if (number + odd) % 2 == 0 else None, end)
        runs.append(run)
        if run.end != "stopped" and (run.stopped_ms is None or run.text == alone[place]):
            failures.check(run.text == alone[place], f"{place}: another text than alone: {run.text!r}")
        else:
            failures.check(run.end == "stopped", f"{place}: not stopped but {run.end}")
            same = alone[place].startswith(run.text) and run.text != ""
            failures.check(same, f"{place}: another beginning than alone: {run.text!r}")


def turn_pages(url: str, count: int, end: float) -> list[float]:
    """Press the right arrow in real pages by turns; ms from the key to the drawn step."""
    from playwright.sync_api import sync_playwright

    took: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        pages = []
        for number in range(count):
            page = browser.new_context().new_page()
            page.set_default_timeout(120_000)
            page.goto(url)
            page.get_by_role("tab", name="Replay").click()
            page.get_by_label("Sample", exact=True).click()
            page.get_by_role("option").nth(number).click()
            page.locator(".ddviz-stage:visible g[role='treeitem']").first.wait_for()
            pages.append(page)
        while time.monotonic() < end:
            for page in pages:
                head = page.locator(".ddviz-stage:visible .ddviz-tree-pane .ddviz-pane-head")
                page.evaluate(WATCH_HEAD, head.element_handle())
                page.keyboard.press("ArrowRight")
                took.append(page.evaluate("() => window.stepDrawn"))
                page.wait_for_timeout(300)
        browser.close()
    return [ms for ms in took if ms >= 0]


# -1: at the last step of the trace nothing changes; then it begins anew
WATCH_HEAD = """(head) => {
  const before = head.textContent;
  window.stepDrawn = new Promise((done) => {
    document.addEventListener("keydown", () => {
      const start = performance.now();
      const look = () => {
        const took = performance.now() - start;
        if (head.textContent !== before) return done(took);
        return took > 5000 ? done(-1) : requestAnimationFrame(look);
      };
      look();
    }, { once: true, capture: true });
  });
}"""


def prompt_of(place: str) -> str:
    return f"{place}: tell in a few sentences what a traveller would see in {place} on a summer morning."


# ---------------------------------------------------------------- the app and what it holds


@contextmanager
def app(args: argparse.Namespace, runs: Path) -> Iterator[tuple[str, int]]:
    """The app as a process of its own on two cores: its address and its pid."""
    port = free_port()
    pair = [
        word
        for name in ("target", "draft")
        if (value := getattr(args, name))
        for word in (f"--{name}", value)
    ]
    command = [sys.executable, "-m", "ddviz.cli", "--port", str(port), "--runs", str(runs), *pair]
    cores = sorted(os.sched_getaffinity(0))[:2]
    with open(runs / "app.log", "wb") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=ROOT, preexec_fn=lambda: os.sched_setaffinity(0, cores)
        )
    try:
        url = f"http://127.0.0.1:{port}"
        said = runs / "app.log"
        wait_until(lambda: "ddviz is at" in said.read_text() or child.poll() is not None, 300)
        assert child.poll() is None, said.read_text()
        yield url, child.pid
    finally:
        child.terminate()  # not SIGINT, which a child of a background shell ignores
        child.wait(60)


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """The app's children, the engine among them: each of its threads may have begun one."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def cpu_s(pid: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)


def held(pid: int) -> dict[str, float]:
    """What a process holds now: RSS in MB, file handles, threads."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss_mb": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "handles": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
    }


def watch(pids: dict[str, int], end: float) -> list[dict[str, Any]]:
    begin, rows = time.monotonic(), []
    while time.monotonic() < end:
        rows.append({"s": round(time.monotonic() - begin)} | {name: held(pid) for name, pid in pids.items()})
        rows[-1]["load"] = os.getloadavg()[0]
        time.sleep(SAMPLED_S)
    return rows


# ---------------------------------------------------------------- the run and its figures


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def steps_of_samples() -> dict[str, list[str]]:
    """Title of a sample -> the digest of each step's answer."""
    found = {}
    for path in sorted((ROOT / "traces").glob("*.ddviz")):
        trace = load(path)
        views = (step_view(trace, index) for index in range(len(trace.steps)))
        found[path.stem.replace("-", " ")] = [digest(msgspec.json.encode(view)) for view in views]
    return found


def figures(values: list[float]) -> dict[str, float]:
    """Median, 95 and 99 of 100, most, in ms."""
    if not values:
        return {"count": 0}
    ranked = sorted(values)
    parts = {"p95": 0.95, "p99": 0.99}
    return {
        "count": len(ranked),
        "median": round(statistics.median(ranked), 1),
        **{
            name: round(ranked[min(len(ranked) - 1, int(len(ranked) * part))], 1)
            for name, part in parts.items()
        },
        "max": round(ranked[-1], 1),
    }


def turns(runs: Path) -> dict[str, Any]:
    """How runs that were under way together took turns: others' forwards between two steps of one."""
    gaps, speeds = [], []
    for path in runs.glob("*.ddviz"):
        trace = load(path)
        ids = [step.batch.id for step in trace.steps if step.batch]
        gaps += [b - a - 1 for a, b in itertools.pairwise(ids)]
        if trace.end and trace.end.time_us and len(ids) > 5:
            speeds.append((len(trace.output_ids) - 1) / trace.end.time_us * 1e6)
    return {
        "forwards of others between two steps": {str(n): gaps.count(n) for n in sorted(set(gaps))},
        "tokens/s of a run": {"least": round(min(speeds), 1), "most": round(max(speeds), 1)}
        if speeds
        else {},
    }


def flat(rows: list[dict[str, Any]], failures: Failures) -> None:
    """Memory and handles of the last third against those of the second, the first being warm-up."""
    third = len(rows) // 3
    for name in ("app", "engine"):
        second, last = rows[third : 2 * third], rows[2 * third :]
        before, after = (statistics.median(row[name]["rss_mb"] for row in part) for part in (second, last))
        failures.check(after <= before * GROWS, f"memory of the {name} grows: {before} to {after} MB")
        before, after = (max(row[name]["handles"] for row in part) for part in (second, last))
        failures.check(after <= before + SPARE_HANDLES, f"handles of the {name} grow: {before} to {after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replaying", type=int, default=20)
    parser.add_argument("--generating", type=int, default=4, help=f"at most {len(PLACES)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--soak", type=float, help="minutes, instead of --seconds; fails where it grows")
    parser.add_argument("--pages", type=int, default=0, help="real ones that replay too")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    seconds = args.soak * 60 if args.soak else args.seconds
    failures, places = Failures(), PLACES[: args.generating]
    wanted = steps_of_samples()
    with tempfile.TemporaryDirectory() as folder, app(args, Path(folder)) as (url, pid):
        runs = Path(folder)
        page = HttpPage(url)
        wait_until(lambda: page.status()["state"] == "ready", 600)
        alone = {place: generate(page, place).text for place in places}
        failures.check(len(set(alone.values())) == len(places), "two prompts have one text")
        page.close()
        for path in runs.glob("*.ddviz"):
            path.unlink()
        pids = {"app": pid, "engine": children(pid)[0]}
        cpu_before = {name: cpu_s(each) for name, each in pids.items()}
        load_before, end = os.getloadavg(), time.monotonic() + seconds
        latency: list[list[float]] = [[] for _ in range(args.replaying)]
        generated: dict[str, list[Generated]] = {place: [] for place in places}
        crashed: list[str] = []

        def session(function: Callable[..., None], *arguments: Any) -> threading.Thread:
            def body() -> None:
                try:
                    function(url, *arguments, end)
                except Exception as error:
                    crashed.append(f"{function.__name__}: {error!r:.300}")

            thread = threading.Thread(target=body)
            thread.start()
            return thread

        threads = [session(replay, n, wanted, failures, latency[n]) for n in range(args.replaying)]
        threads += [session(keep_generating, place, alone, failures, generated[place]) for place in places]
        rows: list[dict[str, Any]] = []
        watcher = threading.Thread(target=lambda: rows.extend(watch(pids, end)))
        watcher.start()
        in_pages = turn_pages(url, args.pages, end) if args.pages else []
        for thread in [*threads, watcher]:
            thread.join()
        interleaved = turns(runs)
        used = {name: round(cpu_s(each) - cpu_before[name], 1) for name, each in pids.items()}
        log = (runs / "app.log").read_text().splitlines()[1:]
    finished = [run for runs_of in generated.values() for run in runs_of]
    http = figures([ms for each in latency for ms in each])
    failures.check(not crashed, f"sessions ended early: {crashed}")
    failures.check(http.get("median", 0.0) < SLOW_MS, f"a step change takes {http.get('median')} ms")
    if args.soak:
        flat(rows, failures)
    report = {
        "sessions": {"replaying": args.replaying, "generating": args.generating, "pages": args.pages},
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
        "load average": {"before": load_before, "after": os.getloadavg()},
        "step change, ms": http,
        "step change in a page, ms, key to drawn": figures(in_pages),
        "step of a live run, ms": figures([ms for run in finished for ms in run.step_ms]),
        "stop to its end in view, ms": figures([run.stopped_ms for run in finished if run.stopped_ms]),
        "runs": {place: len(runs_of) for place, runs_of in generated.items()},
        **interleaved,
        "seconds of a core used": used,
        "checks": failures.checks,
        "failures": failures.count,
        "what failed": failures.sentences[:10],
        "log": log[-5:],
        "held": rows if len(rows) <= 40 else rows[:: len(rows) // 40 + 1],
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if failures.count else 0


if __name__ == "__main__":
    sys.exit(main())
