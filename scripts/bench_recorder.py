"""What recording costs: tokens/s with and without, interleaved pairs, median of the ratios.

    python scripts/bench_recorder.py [--pairs 9] [--settings 16-4,64-0] [--dtype float32] [--target FOLDER]

Prints one line per setting (budget-cap). The goal: under 3 % at budget 16, under 8 % at 64
(docs/benchmarks.md).
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.engines.torch_engine.fetch import demo_drafter
from ddviz.engines.torch_engine.loading import load_engine
from ddviz.engines.torch_engine.record import Recording
from ddviz.trace import load

PROMPT = "Write a Python implementation of quicksort with comments."


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--settings", default="16-4,64-0", help="budget-cap, ...")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target")
    args = parser.parse_args()
    draft = str(demo_drafter()) if args.target else None
    engine = load_engine(EngineOptions(target=args.target, draft=draft, device=args.device, dtype=args.dtype))
    for setting in args.settings.split(","):
        budget, cap = map(int, setting.split("-"))
        params = GenerateParams(
            prompt=PROMPT, budget=budget, topk_cap=cap, temperature=args.temperature, seed=1,
            max_new_tokens=args.max_tokens,
        )  # fmt: skip
        costs, speeds, size = measure(engine, params, args.pairs)
        print(
            f"{setting} T={args.temperature:g} {args.dtype} on {engine.device}: "
            f"recording costs {statistics.median(costs):.1%} of tokens/s "
            f"(median of {args.pairs} pairs, quartiles {quartiles(costs)}), "
            f"{statistics.median(speeds):.1f} tokens/s unrecorded, {size:.0f} bytes a step",
            flush=True,
        )
    return 0


def measure(engine, params: GenerateParams, pairs: int) -> tuple[list[float], list[float], float]:
    """Share of tokens/s lost per pair, tokens/s without recording, bytes a step."""
    engine.generate(params)
    costs, speeds, size = [], [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            path = Path(folder) / f"{pair}.ddviz"
            runs = {}
            for recorded in (True, False) if pair % 2 else (False, True):
                if recorded:
                    with Recording(path) as recording:
                        runs[recorded] = engine.generate(params, recording).tokens_per_s
                else:
                    runs[recorded] = engine.generate(params).tokens_per_s
            costs.append(1 - runs[True] / runs[False])
            speeds.append(runs[False])
            size = path.stat().st_size / len(load(path).steps)
    return costs, speeds, size


def quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.1%} to {high:.1%}"


if __name__ == "__main__":
    sys.exit(main())
