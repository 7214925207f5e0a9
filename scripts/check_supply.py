"""What ddviz is made of and ships in: ranges that resolve, packages without known holes, a wheel that works.

    python scripts/check_supply.py resolve        the lowest and the highest versions that are allowed
    python scripts/check_supply.py lowest [TEST]  install the lowest, torch as it is here, and run tests
    python scripts/check_supply.py audit          known holes of what is installed and of the highest
    python scripts/check_supply.py build          wheel and sdist, each installed anew and used

All work in a temporary folder, with uv, pip-audit and build from an environment of their own. Exit 1 where
something does not hold. `build` needs no network once pip has its packages: it borrows those that are
installed here.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.app.conftest import free_port

ROOT = Path(__file__).parents[1]
QUICK = [
    "tests/tree",
    "tests/trace",
    "tests/check",
    "tests/analysis",
    "tests/engines",
    "tests/app",
    "tests/test_cli.py",
]
TOOLS = ["pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.2", "hypothesis>=6", "jsonschema>=4"]
QUICK_WAY = ["-m", "not browser", "-n", "2"]
# What a wheel must hold beside code: a pattern, and how many files at least.
DATA = {
    "ddviz/traces/*.ddviz": 13,
    "ddviz/traces/README.md": 1,
    "ddviz/models/*/*": 4,
    "ddviz/viewer/*.js": 10,
    "ddviz/viewer/*.css": 1,
    "ddviz/viewer/vendor/*.LICENSE": 1,
    "ddviz/learn/lessons/*.md": 10,
    "ddviz/app/*.js": 5,
    "ddviz-*.dist-info/licenses/THIRD_PARTY.md": 1,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["resolve", "lowest", "audit", "build"])
    parser.add_argument("tests", nargs="*", default=QUICK)
    parser.add_argument(
        "--torch-at", type=Path, help="site-packages with torch for `lowest` (default: these)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        match args.what:
            case "resolve":
                return resolve(work)
            case "lowest":
                return lowest(work, args.tests, args.torch_at)
            case "audit":
                return audit(work)
            case _:
                return build(work)


def resolve(work: Path) -> int:
    for how in ("lowest-direct", "highest"):
        found = compiled(work, how)
        print(f"{how}: {len(found)} packages, among them " + ", ".join(direct(found)))
    return 0


def compiled(work: Path, how: str, *more: str) -> list[str]:
    """name==version of each package that a resolution takes in."""
    out = work / f"{how}.txt"
    uv = tool(work, "uv")
    command = [uv, "pip", "compile", "--quiet", "--resolution", how, "--no-annotate", "--no-header", *more]
    run(*command, "-o", out, ROOT / "pyproject.toml")
    return [line for line in out.read_text().split("\n") if "==" in line]


def direct(found: list[str]) -> list[str]:
    """Those that pyproject.toml names."""
    import tomllib

    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {word.split(">")[0].split("=")[0].strip() for word in named}
    return [line for line in found if line.split("==")[0] in names]


def lowest(work: Path, tests: list[str], torch_at: Path | None) -> int:
    import torch  # loads for seconds, and nothing else needs it

    found = [line for line in compiled(work, "lowest-direct") if not is_of_torch(line)]
    uv, python = tool(work, "uv"), new_venv(work / "lowest")
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", *found)
    limits = work / "limits.txt"
    limits.write_text("\n".join(found) + "\n")
    run(uv, "pip", "install", "--quiet", "--python", python, "--constraint", limits, *TOOLS)
    # torch is large, and its lowest version may be here already
    lend(torch_at or Path(torch.__file__).parents[1], work / "lowest", is_of_torch)
    (site_of(work / "lowest") / "ddviz.pth").write_text(f"{ROOT}\n")
    said = run(python, "-c", "import torch, transformers; print(torch.__version__, transformers.__file__)")
    print("torch", said.strip(), *direct(found), flush=True)
    return subprocess.run([python, "-m", "pytest", *QUICK_WAY, *tests], cwd=ROOT).returncode


def is_of_torch(name: str) -> bool:
    """Of a package as it is listed or as it lies in site-packages: torch itself, or what it brings."""
    parts = ("torch-", "torch=", "torchgen", "functorch", "triton", "nvidia", "cuda")
    return name == "torch" or name.startswith(parts)


def audit(work: Path) -> int:
    tool(work, "pip-audit")
    listed = work / "installed.txt"
    frozen = run(sys.executable, "-m", "pip", "list", "--format", "freeze", "--exclude-editable")
    kept = [line.split("+")[0] for line in frozen.split("\n") if line and not line.startswith("ddviz==")]
    listed.write_text("\n".join(kept) + "\n")
    code = 0
    for name, file in (("installed", listed), ("highest", None)):
        if file is None:
            file = work / "wanted.txt"
            file.write_text("\n".join(line.split("+")[0] for line in compiled(work, "highest")) + "\n")
        print(f"{name}: {len(file.read_text().split())} packages", flush=True)
        command = [
            work / "tools/bin/pip-audit",
            "--strict",
            "--no-deps",
            "--disable-pip",
            "--progress-spinner",
            "off",
            "-r",
            file,
        ]
        code |= subprocess.run(command).returncode
    return code


def build(work: Path) -> int:
    run(tool(work, "build").parent / "pyproject-build", "--outdir", work / "dist", ROOT)
    wheel, sdist = next((work / "dist").glob("*.whl")), next((work / "dist").glob("*.tar.gz"))
    check_data(wheel)
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "source", filter="data")
    source = next((work / "source").iterdir())
    run(work / "tools/bin/pyproject-build", "--wheel", "--outdir", work / "again", source)
    again = next((work / "again").glob("*.whl"))
    check_data(again)
    assert contents(wheel) == contents(again), "the sdist builds another wheel"
    for name, package in (("sources", wheel), ("sdist", again)):
        python = new_venv(work / name)
        lend(Path(next(path for path in sys.path if path.endswith("site-packages"))), work / name)
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", package)
        use(python, work)
        print(f"the wheel, built from the {name}: {package.stat().st_size / 1e6:.1f} MB, installed and used")
    return 0


def contents(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def check_data(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    for pattern, count in DATA.items():
        found = sum(name.match(pattern) for name in names)
        assert found >= count, f"{wheel.name}: {found} of {pattern}, must be {count} or more"


def use(python: Path, work: Path) -> None:
    """What a user does first, in a folder that is not the project's, with what the package brings."""
    ddviz = python.parent / "ddviz"
    assert "doctor" in run(ddviz, "--help", cwd=work)
    where = run(python, "-c", "import ddviz; print(ddviz.__file__)", cwd=work).strip()
    assert str(python.parent.parent) in where, f"{where} is not the installed one"
    sample = Path(where).parent / "traces" / "quicksort-greedy.ddviz"
    run(ddviz, "show", sample, "--step", "3", cwd=work)
    run(ddviz, "doctor", sample, cwd=work)
    page = work / f"{python.parent.parent.name}.html"
    run(ddviz, "export", sample, "--to", "html", "--out", page, cwd=work)
    assert page.stat().st_size > 100_000
    port = free_port()
    app = subprocess.Popen(
        [ddviz, "--port", str(port), "--runs", work / "runs", "--target", work / "none"], cwd=work
    )  # Replay alone
    try:
        assert "Recorded run" in fetched(f"http://127.0.0.1:{port}/")
    finally:
        app.terminate()
        app.wait(30)


def fetched(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 120
    while True:
        try:
            return opener.open(url, timeout=30).read().decode()
        except OSError:
            assert time.monotonic() < deadline, f"nothing at {url}"
            time.sleep(0.5)


# ---------------------------------------------------------------- environments


def tool(work: Path, name: str) -> Path:
    """A program of an environment of its own."""
    python = work / "tools/bin/python"
    if not python.exists():
        new_venv(work / "tools")
    run(python, "-m", "pip", "install", "--quiet", name)
    return python.parent / name


def new_venv(folder: Path, *options: str) -> Path:
    run(sys.executable, "-m", "venv", *options, folder)
    return folder / "bin/python"


def lend(here: Path, venv: Path, wanted: Callable[[str], bool] = bool) -> None:
    """Packages that are installed here, ddviz itself left out, as if pip had fetched them."""
    site = site_of(venv)
    for path in here.iterdir():
        is_wanted = wanted(path.name) and "ddviz" not in path.name and path.suffix != ".pth"
        if is_wanted and not (site / path.name).exists():
            (site / path.name).symlink_to(path)


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/*/site-packages"))


def run(*command: object, cwd: Path | None = None) -> str:
    """The output of a command that must work."""
    done = subprocess.run([str(word) for word in command], cwd=cwd or ROOT, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr + done.stdout)[-3000:]
        sys.exit(f"{' '.join(map(str, command))[:300]}\nexit {done.returncode}\n{said}")
    return done.stdout


if __name__ == "__main__":
    os.environ.setdefault("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    sys.exit(main())
