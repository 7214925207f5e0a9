"""Check the SGLang plugin on a GPU. Prints PASS or FAIL and the figures of each check named.

    python scripts/gpu/check.py NAME... --target FOLDER [--draft FOLDER] [--out FOLDER]

One GPU (two for tensor parallelism in `toys`), an environment with ddviz[sglang]. The engines that the named
checks need are started together, so name what fits beside each other. The checks:

"""

import argparse
import ast
import importlib
import json
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.gpu import checks  # noqa: E402 - found there
from scripts.gpu.lab import DRAFT, Lab, prompts_of  # noqa: E402

PROMPTS = ROOT / "benchmarks/prompts.jsonl"
MOST_FAILURES = 20


def main() -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(checks.__path__))
    parser = argparse.ArgumentParser(
        description=(__doc__ or "") + _checks_told(known),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=known, metavar="NAME", help="checks to run, see above")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target that --draft fits")
    drafter = "folder of the DFlash drafter (default: the one that ddviz brings)"
    parser.add_argument("--draft", type=Path, default=Path(DRAFT), help=drafter)
    out = "where logs and samples go (default: $OUT, or gpu-checks)"
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-checks")), help=out)
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


def _checks_told(names: list[str]) -> str:
    """The first sentence of each check's docstring. Nothing is imported, for that takes SGLang."""
    lines = []
    for name in names:
        source = (Path(checks.__path__[0]) / f"{name}.py").read_text()
        told = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
        lines.append(f"    {name:14}{told.split('. ')[0].rstrip('.')}\n")
    return "".join(lines)


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
