"""Where the app keeps things on this machine. Loads no Gradio, so that other commands may ask."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_data_path

from ddviz.errors import TraceError


def default_runs() -> Path:
    """The folder of live runs, unless --runs names another."""
    return user_data_path("ddviz") / "runs"


def make_runs(folder: Path) -> None:
    """Make a folder of runs, which nobody else may enter: prompts and texts lie in it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextmanager
def reserved_path(folder: Path, name: str) -> Iterator[Path]:
    """folder/name.ddviz, or with -2, -3 ... where that is taken: nobody else gets it while the block runs.

    Makes the folder. Several apps may write to one: a name is taken by a file .name.taken beside it, which
    goes with the block. Raises TraceError where nothing can be written.
    """
    try:
        make_runs(folder)
        path, sign = _reserve(folder, name)
    except OSError as error:
        reason = error.strerror
        raise TraceError(
            f"{folder}: can't keep traces there ({reason}); choose a folder with --runs"
        ) from None
    try:
        yield path
    finally:
        sign.unlink(missing_ok=True)


def _reserve(folder: Path, name: str) -> tuple[Path, Path]:
    """A free path, and the file that says so."""
    for n in range(1, 10_000):
        path = folder / f"{name}{'' if n == 1 else f'-{n}'}.ddviz"
        sign = folder / f".{path.stem}.taken"
        try:
            sign.touch(exist_ok=False)
        except FileExistsError:
            continue
        if not path.exists():
            return path, sign
        sign.unlink()
    raise FileExistsError(17, "10,000 traces of one name")
