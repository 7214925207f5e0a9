"""Measure the viewer on a trace, in headless chromium: `python scripts/bench_viewer.py big.ddviz`.

In:  a trace (scripts/make_big_trace.py makes one of 10,000 steps).
Out: one line per number, or JSON: size of both pages, time to the first picture, per step with a held key the
     work of its frame, the time between steps and the main thread's processor time, steps lost, memory.
Not here: whether what is drawn is right (tests/viewer).

A time alone is noise on a busy machine, so each has a baseline of the same run beside it: an empty page of
the same size to open, and frames in which nothing is drawn.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ddviz.trace import load
from ddviz.viewer.html import export_html
from tests.browser import FLAGS, wait_until

# From the beginning of the navigation to the first step on screen; looked for while the page is still read.
OPENED = """globalThis.opened = new Promise((done) => {
  const isDrawn = () => typeof ddviz !== "undefined" && ddviz.view && ddviz.view.state().drawMs !== null;
  const look = () => (isDrawn() ? done(performance.now()) : requestAnimationFrame(look));
  look();
})"""
# A key held down, as a browser delivers it: the press comes before a frame, the frame draws the step. Of each
# frame that drew one: the work from its beginning to after its paint, and the time since the one before.
HELD = """(presses) => new Promise((done) => {
  const root = document.querySelector(".ddviz-host").shadowRoot.querySelector(".ddviz");
  const [frames, intervals, drawn, seen] = [[], [], [], [ddviz.view.state().step]];
  const key = { key: "ArrowRight", bubbles: true, composed: true, cancelable: true };
  let [count, last] = [0, performance.now()];
  function press() {
    if (seen.length > presses || count > 40 * presses) return done({ frames, intervals, drawn, seen });
    requestAnimationFrame(frame); // before the viewer's own of this press
    root.dispatchEvent(new KeyboardEvent("keydown", { ...key, repeat: count++ > 0 }));
  }
  function frame() {
    const start = performance.now();
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const [now, { step, drawMs, drawn: place }] = [performance.now(), ddviz.view.state()];
      if (seen.at(-1) !== step && place === step) {
        seen.push(step);
        drawn.push(drawMs);
        frames.push(now - start);
        intervals.push(now - last);
        last = now;
      }
      press();
    };
    channel.port2.postMessage(0);
  }
  press();
})"""
IDLE = """(count) => new Promise((done) => {
  const frames = [];
  function frame() {
    const start = performance.now();
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      frames.push(performance.now() - start);
      frames.length < count ? requestAnimationFrame(frame) : done(frames);
    };
    requestAnimationFrame(() => channel.port2.postMessage(0));
  }
  requestAnimationFrame(frame);
})"""


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--level", choices=("light", "standard"), default="light", help="of the page that is measured"
    )
    parser.add_argument("--presses", type=int, default=2000, help="steps to go with the held key")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    trace = load(args.trace)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {
            level: export_html(trace, Path(folder) / f"{level}.html", level)
            for level in ("light", "standard")
        }
        sizes = {level: path.stat().st_size for level, path in pages.items()}
        empty = Path(folder) / "empty.html"
        empty.write_text(f'<script type="text/plain">{"x" * sizes[args.level]}</script>')
        browser = playwright.chromium.launch(
            args=[*FLAGS, "--enable-precise-memory-info"], executable_path="/usr/bin/chromium"
        )
        numbers = {"steps": len(trace.steps), "trace_bytes": trace.size}
        numbers |= {f"{level}_bytes": size for level, size in sizes.items()}
        numbers["standard_ratio"] = sizes["standard"] / trace.size
        numbers |= measured(browser, pages[args.level], empty, min(args.presses, len(trace.steps) - 1))
        browser.close()
    print(json.dumps(numbers, indent=1) if args.json else as_text(numbers))
    return 0


def measured(browser: Any, path: Path, empty: Path, presses: int) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    began = time.perf_counter()
    page.goto(empty.as_uri())
    baseline = time.perf_counter() - began
    page.add_init_script(OPENED)
    page.goto(path.as_uri())
    first = page.evaluate("opened") / 1000
    wait_until(page, f"ddviz.view.state().steps > {presses}", seconds=60)
    idle = page.evaluate(IDLE, 60)
    cdp = page.context.new_cdp_session(page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    memory, frames, intervals, drawn, steps = [heap(cdp)], [], [], [], []
    counts = [kept(cdp)]
    busy = main_thread_ms(cdp)
    for part in range(4):
        held = page.evaluate(HELD, presses * (part + 1) // 4 - presses * part // 4)
        frames += held["frames"]
        intervals += held["intervals"]
        drawn += held["drawn"]
        steps += held["seen"] if part == 0 else held["seen"][1:]
        memory.append(heap(cdp))
        counts.append(kept(cdp))
    lost = sum(after - before - 1 for before, after in pairwise(steps))
    return {
        "first_picture_s": first,
        "empty_page_s": baseline,
        "frame_ms": statistics.median(frames),
        "frame_ms_p95": sorted(frames)[int(0.95 * len(frames))],
        "between_steps_ms": statistics.median(intervals),
        "idle_frame_ms": statistics.median(idle),
        "cpu_ms_a_step": (main_thread_ms(cdp) - busy) / (len(steps) - 1),
        "draw_ms": statistics.median(drawn),
        "steps_gone": len(steps) - 1,
        "steps_lost": lost,
        "heap_mb": [round(size / 1e6, 1) for size in memory],
        "elements": [elements for elements, _ in counts],
        "listeners": [listeners for _, listeners in counts],
    }


def main_thread_ms(cdp: Any) -> float:
    """Processor time of the page's main thread so far: another program on the machine adds little to it."""
    metrics = {entry["name"]: entry["value"] for entry in cdp.send("Performance.getMetrics")["metrics"]}
    return float(1000 * metrics["TaskDuration"])


def kept(cdp: Any) -> tuple[int, int]:
    """Nodes of the document, detached ones too, and listeners, after a collection."""
    metrics = {entry["name"]: entry["value"] for entry in cdp.send("Performance.getMetrics")["metrics"]}
    return int(metrics["Nodes"]), int(metrics["JSEventListeners"])


def heap(cdp: Any) -> int:
    """Bytes of the JavaScript heap after a collection."""
    cdp.send("HeapProfiler.enable")
    cdp.send("HeapProfiler.collectGarbage")
    return int(cdp.send("Runtime.getHeapUsage")["usedSize"])


def as_text(numbers: dict[str, Any]) -> str:
    return "\n".join(
        f"{name:16} {value:.4g}" if isinstance(value, float) else f"{name:16} {value}"
        for name, value in numbers.items()
    )


if __name__ == "__main__":
    sys.exit(main())
