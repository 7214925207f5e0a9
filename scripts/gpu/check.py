"""Check the SGLang plugin on a GPU. Prints PASS or FAIL and the figures of each check named.

    python scripts/gpu/check.py NAME... --target FOLDER [--draft FOLDER] [--out FOLDER]

Checks: kernels, greedy, chain, modes, ... (one file each in scripts/gpu/checks). The engines that the named
checks need are started together.
"""

import argparse
import importlib
import json
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.gpu import checks
from scripts.gpu.lab import Lab, prompts_of

PROMPTS = Path("benchmarks/prompts.jsonl")
MOST_FAILURES = 20


def main() -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(checks.__path__))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, default=Path("ddviz/models/smollm2-135m-dflash"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-checks")))
    args = parser.parse_args()

    modules = {name: importlib.import_module(f"scripts.gpu.checks.{name}") for name in args.names}
    needs = dict.fromkeys(engine for module in modules.values() for engine in module.NEEDS)
    context = checks.Context(
        prompts=prompts_of(PROMPTS, args.target),
        tags=[json.loads(line)["tag"] for line in PROMPTS.read_text().splitlines()],
        target=args.target,
        draft=args.draft,
        out=args.out,
    )
    verdicts: dict[str, checks.Verdict] = {}
    for name, module in modules.items():
        if not module.NEEDS:
            verdicts[name] = judge(name, lambda run=module.run: run({}, context))
    if needs:
        with Lab(args.target, args.draft, args.out) as lab:
            engines = {name: lab.start(name, **checks.ENGINES[name]) for name in needs}
            lab.wait()
            for name, module in modules.items():
                if module.NEEDS:
                    verdicts[name] = judge(name, lambda run=module.run: run(engines, context))
    failed = [name for name, verdict in verdicts.items() if verdict.failures]
    print(f"\n{len(verdicts) - len(failed)} of {len(verdicts)} checks passed", *failed)
    return 1 if failed else 0


def judge(name: str, run: Callable[[], checks.Verdict]) -> checks.Verdict:
    begun = time.monotonic()
    try:
        verdict = run()
    except Exception:
        verdict = checks.Verdict(failures=[traceback.format_exc()])
    print(f"\n{'FAIL' if verdict.failures else 'PASS'} {name} ({time.monotonic() - begun:.0f} s)")
    for line in (*verdict.figures, *verdict.failures[:MOST_FAILURES]):
        print("  " + line, flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
