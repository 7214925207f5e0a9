"""The folder of uploaded files: this user's alone, and swept, so that it does not grow for ever.

In:  DDVIZ_CACHE or the user's cache; GRADIO_TEMP_DIR names another folder.
Out: the folder; the bytes in it.
Loads no Gradio, which reads GRADIO_TEMP_DIR when it is imported (app/__init__.py). Its own default is one
folder for all users of a machine.
"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

from ddviz.errors import DdvizError

DAY_S = 86_400
PART_S = 300  # without a new byte: what is left of an upload that broke off


def uploads_folder() -> Path:
    named, cache = os.environ.get("GRADIO_TEMP_DIR"), os.environ.get("DDVIZ_CACHE")
    if named:
        return Path(named)
    return (Path(cache).expanduser() if cache else user_cache_path("ddviz")) / "uploads"


def made_uploads_folder() -> Path:
    """The folder, there, of mode 700 and swept. Raises DdvizError where it can't be, or is another user's."""
    folder = uploads_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
            raise PermissionError(0, "it is not your own")
        folder.chmod(0o700)
    except OSError as error:
        raise DdvizError(
            f"{folder}: can't keep uploads there ({error.strerror}); name a folder of your own with"
            " GRADIO_TEMP_DIR"
        ) from None
    bytes_after_sweeping(folder)
    return folder


def bytes_after_sweeping(folder: Path) -> int:
    """What the folder holds, once files older than a day and parts of broken-off uploads are removed."""
    now, total = time.time(), 0
    for path, found in list(_files(folder)):
        age = now - found.st_mtime
        is_part = path.parent == folder and path.name.startswith("tmp")  # as Gradio names them
        if age > (PART_S if is_part else DAY_S):
            _remove(path, folder)
        else:
            total += found.st_size
    return total


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.rglob("*"):
        try:
            found = path.lstat()
        except OSError:
            continue  # cleared away just now
        if not stat.S_ISDIR(found.st_mode):
            yield path, found


def _remove(path: Path, folder: Path) -> None:
    """The file, and its own folder where nothing else is in it."""
    try:
        path.unlink()
        if path.parent != folder:
            path.parent.rmdir()
    except OSError:
        pass  # another app was faster, or it is not ours to remove
