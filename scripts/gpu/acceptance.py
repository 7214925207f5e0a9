"""Accept length of torch_engine over the 60 prompts, against the table of a right implementation. Prints PASS
or FAIL.

    python scripts/gpu/acceptance.py --target FOLDER [--workers 12] [--out FOLDER]

Runs linear DFlash, DDTree 16-4 and 64-0 at T = 0, 0.6 and 1.0, 192 tokens, float32, a different seed a
prompt, several processes on one GPU; and autoregression at T = 0, with which the other three must agree token
for token. A setting passes within 3 % (greedy) or 8 % (sampled) of the table. Figures are tokens over steps,
cut at the end of the text as the table's are; the accept length, uncut, stands beside.
"""

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddviz.bench import read_prompts
from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.fetch import demo_drafter
from scripts.gpu.checks.accept_length import TABLE

SETTINGS = {
    "ar": {"mode": "ar"},
    "linear": {"mode": "dflash"},
    "16-4": {"mode": "ddtree", "budget": 16, "topk_cap": 4},
    "64-0": {"mode": "ddtree", "budget": 64, "topk_cap": 0},
}
TOLERANCE = {0.0: 0.03, 0.6: 0.08, 1.0: 0.08}
_engine = None


def start_worker(target: str, device: str, dtype: str) -> None:
    global _engine
    import torch

    from ddviz.engines.torch_engine.engine import TorchEngine
    from ddviz.engines.torch_engine.models import load_pair

    torch.set_num_threads(1)
    _engine = TorchEngine(load_pair(target, str(demo_drafter()), dtype, device))
    print("worker ready:", _engine.device, _engine.describe(), flush=True)


def run_one(job: tuple[str, float, int, str, str, int]) -> dict:
    setting, temperature, index, tag, text, max_tokens = job
    params = GenerateParams(
        prompt=text,
        temperature=temperature,
        seed=1000 + index,
        max_new_tokens=max_tokens,
        **SETTINGS[setting],
    )
    result = _engine.generate(params)
    return {
        "setting": setting,
        "temperature": temperature,
        "index": index,
        "tag": tag,
        "output": result.output_ids,
        "steps": result.steps,
        "accept": sum(result.accept_lengths),
        "tokens": len(result.output_ids) - 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--prompts", type=Path, default=Path("benchmarks/prompts.jsonl"))
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path, default=Path("."))
    args = parser.parse_args()
    prompts = read_prompts(args.prompts, args.limit)
    jobs = [
        (setting, temperature, index, prompt.tag, prompt.text, args.max_tokens)
        for temperature in TOLERANCE
        for setting in SETTINGS
        if setting != "ar" or temperature == 0.0
        for index, prompt in enumerate(prompts)
    ]
    start = time.time()
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.workers, start_worker, (args.target, args.device, args.dtype)) as pool:
        rows = []
        for row in pool.imap_unordered(run_one, jobs):
            rows.append(row)
            if len(rows) % 60 == 0:
                print(f"{len(rows)} of {len(jobs)} requests, {time.time() - start:.0f} s", flush=True)
    (args.out / "acceptance.json").write_text(json.dumps(rows))
    good = report_acceptance(rows) & report_losslessness(rows)
    print("PASS" if good else "FAIL")
    return 0 if good else 1


def report_acceptance(rows: list[dict]) -> bool:
    good = True
    print("setting  T    tokens/step  table   off      accept length  mt_bench  gsm8k  humaneval")
    for setting, by_temperature in TABLE.items():
        for temperature, expected in by_temperature.items():
            mine = [r for r in rows if r["setting"] == setting and r["temperature"] == temperature]
            value = ratio(mine, "tokens")
            off = value / expected - 1
            good &= abs(off) <= TOLERANCE[temperature]
            tags = {
                tag: ratio([r for r in mine if r["tag"] == tag], "tokens")
                for tag in sorted({r["tag"] for r in mine})
            }
            print(
                f"{setting:7}  {temperature:3}  {value:11.3f}  {expected:5.2f}  {off:+6.1%}  "
                + f"{ratio(mine, 'accept'):13.3f}  "
                + "  ".join(f"{tag} {figure:.2f}" for tag, figure in tags.items())
            )
    return good


def report_losslessness(rows: list[dict]) -> bool:
    greedy = {(r["setting"], r["index"]): r["output"] for r in rows if r["temperature"] == 0.0}
    good = True
    for setting in TABLE:
        outputs = {index: output for (name, index), output in greedy.items() if name == setting}
        different = [index for index, output in outputs.items() if output != greedy["ar", index]]
        print(
            f"{setting}: greedy output equal to autoregression on {len(outputs) - len(different)} prompts, "
            f"different on {different}"
        )
        good &= not different
    return good


def ratio(rows: list[dict], what: str) -> float:
    return sum(r[what] for r in rows) / max(1, sum(r["steps"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
