"""What being watched costs: tokens/s of Live with the page open in headless Chromium, and with it closed.

    python scripts/bench_watched.py [--pairs 3] [--max-tokens 64]

Engine, app and browser share the machine, as they do for a user.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from ddviz.app.main import launch
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.process import EngineProcess
from ddviz.trace import load

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PROMPT = "Write a Python implementation of quicksort with comments."


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--port", type=int, default=7896)
    args = parser.parse_args()
    engine = EngineProcess(EngineOptions())
    wait(engine)
    params = GenerateParams(prompt=PROMPT, seed=0, max_new_tokens=args.max_tokens)
    speeds: dict[str, list[float]] = {"unwatched": [], "watched": []}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        launch(engine, runs=Path(folder), port=args.port, block=False)
        run_alone(engine, params, Path(folder) / "warm-up.ddviz")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for pair in range(args.pairs):
            speeds["unwatched"].append(run_alone(engine, params, Path(folder) / f"{pair}.ddviz"))
            speeds["watched"].append(run_watched(browser, engine, args, Path(folder)))
        browser.close()
    engine.close(kill=True)
    alone, watched = (statistics.median(speeds[kind]) for kind in ("unwatched", "watched"))
    print(f"unwatched {alone:.1f} tokens/s, watched {watched:.1f}, which costs {1 - watched / alone:.0%}")
    print({kind: [round(value, 1) for value in values] for kind, values in speeds.items()})
    return 0


def run_alone(engine: EngineProcess, params: GenerateParams, path: Path) -> float:
    engine.generate(params, path)
    wait(engine)
    return speed(path)


def run_watched(browser, engine: EngineProcess, args: argparse.Namespace, runs: Path) -> float:
    before = set(runs.glob("*.ddviz"))
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"http://127.0.0.1:{args.port}/")
    page.get_by_label("Max tokens").fill(str(args.max_tokens))
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    time.sleep(3)  # the page has settled
    page.get_by_role("button", name="Generate", exact=True).click()
    while engine.status().state == "ready":
        page.wait_for_timeout(20)
    while engine.status().state != "ready":
        page.wait_for_timeout(200)
    page.close()
    (path,) = set(runs.glob("*.ddviz")) - before
    return speed(path)


def speed(path: Path) -> float:
    """Tokens/s of a finished trace, prefill not counted."""
    end = load(path).end
    return (len(end.output_ids) - 1) / (end.time_us / 1e6)


def wait(engine: EngineProcess) -> None:
    while engine.status().state != "ready":
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
