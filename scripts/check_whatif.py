"""Is `ddviz whatif` right? One recorded 16-4 run predicts others; the others are really run.

    python scripts/check_whatif.py OUT --per-set 4 --max-tokens 128

Records under OUT/SETTING/PROMPT.ddviz what is not there yet, prompt by prompt and setting by setting, so that
a machine that slows down slows all of them; then prints the tables of docs/whatif.md.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

from ddviz.analysis.cost import measured
from ddviz.analysis.stats import stats
from ddviz.analysis.whatif import Estimate, ask, continuations, whatif
from ddviz.bench import read_prompts
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.trace import Trace, load

PROMPTS = Path(__file__).parents[1] / "benchmarks" / "prompts.jsonl"
RECORDED = "16-4"
SETTINGS = {RECORDED: ("ddtree", 16, 4), "linear": ("dflash", 15, 1), "32-8": ("ddtree", 32, 8)}
SETTINGS["64-16"] = ("ddtree", 64, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-set", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compare", action="store_true", help="record nothing")
    args = parser.parse_args()
    if not args.compare:
        record(args)
    compare(args.out)


def record(args: argparse.Namespace) -> None:
    from ddviz.engines.torch_engine.loading import load_engine
    from ddviz.engines.torch_engine.record import Recording

    sets: dict[str, list[str]] = {}
    for prompt in read_prompts(PROMPTS):
        sets.setdefault(prompt.tag, []).append(prompt.text)
    engine = load_engine(EngineOptions(device=args.device))
    engine.generate(GenerateParams(prompt="warm up", max_new_tokens=8))
    for i, tag in itertools.product(range(args.per_set), sets):
        for name, (mode, budget, cap) in SETTINGS.items():
            path = args.out / name / f"{tag}-{i:02}.ddviz"
            if path.exists() and load(path).end:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with Recording(path, overwrite=True) as recording:
                engine.generate(
                    GenerateParams(
                        prompt=sets[tag][i],
                        mode=mode,
                        budget=budget,
                        topk_cap=cap,
                        temperature=args.temperature,
                        seed=1000 + i,
                        max_new_tokens=args.max_tokens,
                    ),
                    recording,
                )
        print(f"{tag} {i + 1} recorded", flush=True)


def compare(out: Path) -> None:
    runs = {
        name: {path.name: load(path) for path in sorted((out / name).glob("*.ddviz"))} for name in SETTINGS
    }
    whole = [name for name in runs[RECORDED] if all(name in of and of[name].end for of in runs.values())]
    recorded = [runs[RECORDED][name] for name in whole]
    print(f"{len(whole)} prompts, {sum(len(trace.steps) for trace in recorded)} recorded steps\n")
    print("| setting | run again | at recorded starts | off | estimate | off | equal at common starts |")
    print("|---|---|---|---|---|---|---|")
    for name, (_, budget, cap) in SETTINGS.items():
        again = [runs[name][prompt] for prompt in whole]
        (result,) = whatif(recorded, [budget], [cap])
        print(row(name, result.estimates[0], recorded, again, (budget, cap)))
    print("\n| setting | ms/step, from the other half | estimate, tokens/s | run again | off |")
    print("|---|---|---|---|---|")
    speeds(runs, whole)


def row(
    name: str, estimate: Estimate, recorded: list[Trace], again: list[Trace], setting: tuple[int, int]
) -> str:
    real = stats(again).all.accept_length
    equal, common = at_common_starts(recorded, again, setting)
    values = estimate.at_recorded_starts, estimate.accept_length
    cells = [f"{value:.3f} | {value / real - 1:+.1%}" for value in values]
    return " | ".join([f"| {name}", f"{real:.3f}", *cells, f"{equal} of {common} |"])


def at_common_starts(recorded: list[Trace], again: list[Trace], setting: tuple[int, int]) -> tuple[int, int]:
    """Steps that begin at the same place of the same text: how many give the accept length that was run."""
    equal = common = 0
    for one, other in zip(recorded, again, strict=True):
        same = next(
            (i for i, (a, b) in enumerate(zip(one.output_ids, other.output_ids, strict=False)) if a != b),
            min(len(one.output_ids), len(other.output_ids)),
        )
        starts = {step.prefix_len: step.accept.num_accepted + 1 for step in other.steps}
        prompt = len(one.prompt.token_ids)
        for step, text in continuations(one):
            if step.prefix_len not in starts or step.prefix_len - prompt >= same:
                continue
            rows = np.array(step.draft.top_logprobs, np.float32), np.array(step.draft.top_ids)
            (answer,) = ask(*rows, step.tree.tokens[0], text, [setting])
            common += 1
            equal += answer.accept_length == starts[step.prefix_len]
    return equal, common


def speeds(runs: dict[str, dict[str, Trace]], whole: list[str]) -> None:
    """Tokens/s of every second prompt, from its 16-4 run and the cost of steps of the other prompts."""
    costs, asked = whole[1::2], whole[::2]
    cost = measured((runs[name][prompt] for name in SETTINGS for prompt in costs), "")
    for name, (_, budget, cap) in SETTINGS.items():
        (result,) = whatif([runs[RECORDED][prompt] for prompt in asked], [budget], [cap])
        estimate = result.estimates[0]
        group = stats(runs[name][prompt] for prompt in asked).all
        ms, real = cost.ms(estimate.mean_nodes), group.accept_lengths / group.timed_us * 1e6
        speed = estimate.accept_length / ms * 1000
        print(f"| {name} | {ms:.0f} | {speed:.2f} | {real:.2f} | {speed / real - 1:+.1%} |")


if __name__ == "__main__":
    main()
