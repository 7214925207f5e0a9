"""Try hostile traces on everything that reads one: python scripts/fuzz.py --inputs 2000 --seed 1

Each kind of input gets so many examples. An input on which a reader raises, takes 5 s of processor time or
brings the process above 1 GiB is made smaller and kept in a folder, one file for each place where it
happens; exit code 1.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.hostile import FILES, LARGE, LIMIT_BYTES, import_everything, read_everything, reference


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["large", *FILES, "reference"])
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where inputs that failed go")
    args = parser.parse_args()
    args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        reports = [
            _tried_large(Path(folder))
            if kind == "large"
            else _tried(kind, args.inputs, args.seed, Path(folder), args.keep)
            for kind in args.kinds
        ]
    print(f"{sum(report['inputs'] for report in reports)} inputs", file=sys.stderr)
    return int(any(report["failed"] for report in reports))


def _tried(kind: str, inputs: int, number: int, folder: Path, keep: Path) -> dict[str, object]:
    start, slowest, tried, failed = time.time(), 0.0, 0, dict[str, str]()
    is_reference = kind == "reference"
    path = folder / ("in.json" if is_reference else "in.ddviz")

    def note(what: str, s: float) -> None:
        nonlocal slowest
        slowest = max(slowest, s)

    def one(data: bytes) -> None:
        nonlocal tried
        tried += 1
        path.write_bytes(data)
        try:
            if is_reference:
                import_everything(path, note)
            else:
                read_everything(path, note)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{kind}-{type(error).__name__}-{Path(place.filename).stem}-{place.lineno}{path.suffix}"
            if not (keep / name).exists() or len(data) < (keep / name).stat().st_size:
                (keep / name).write_bytes(data)
            failed[name] = f"{error!r:.300} at {place.line}"
            raise

    asked = settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    strategy = reference() if is_reference else FILES[kind]
    _quietly(seed(number)(asked(given(strategy)(one))))
    report = {"kind": kind, "inputs": tried, "s": round(time.time() - start), "slowest_s": round(slowest, 2)}
    print(json.dumps(report | {"failed": failed}), flush=True)
    return report | {"failed": failed}


def _tried_large(folder: Path) -> dict[str, object]:
    """Each in a process of its own, so that it is known which one took the memory."""
    failed: dict[str, str] = {}
    start, slowest, largest = time.time(), 0.0, 0
    for name, make in LARGE.items():
        path, said = folder / "in.ddviz", folder / "said"
        path.write_bytes(make())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                took: dict[str, float] = {}
                read_everything(path, took.__setitem__)
                slow = max(took, key=took.__getitem__)
                said.write_text(f"{took[slow]:.2f} s {slow}")
                code = 0
            except BaseException:
                said.write_text(traceback.format_exc()[-1500:])
            os._exit(code)
        _, status, used = os.wait4(child, 0)
        peak = used.ru_maxrss >> 10
        if peak > LIMIT_BYTES >> 20:
            failed[name] = f"{peak} MiB"
        elif status:
            failed[name] = said.read_text() if said.exists() else f"ended with {status}"
        else:
            slowest = max(slowest, float(said.read_text().split()[0]))
        largest = max(largest, peak)
        told = f"{path.stat().st_size >> 10} KiB, {used.ru_utime:.1f} s, {peak} MiB: {said.read_text()}"
        print(f"{name}: {told}", file=sys.stderr, flush=True)
        said.unlink(missing_ok=True)
    report = {"kind": "large", "inputs": len(LARGE), "s": round(time.time() - start)}
    report |= {"slowest_s": round(slowest, 2), "largest_MiB": largest, "failed": failed}
    print(json.dumps(report), flush=True)
    return report


def _quietly(tries: Callable[[], None]) -> None:
    """What failed was noted already."""
    try:
        tries()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        print(f"{error!r:.300}", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
