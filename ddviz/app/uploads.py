"""The folder of uploaded files: this user's alone, and swept, so that it does not grow for ever.

Out: the folder, in the user's cache (cache.py); the bytes in it.
Loads no Gradio, which is told of the folder by GRADIO_TEMP_DIR (app/__init__.py). Its own is one for all
users of a machine.
"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ddviz.cache import cache_root
from ddviz.errors import DdvizError

DAY_S = 86_400
PART_S = 300  # without a new byte: what is left of an upload that broke off


def uploads_folder() -> Path:
    """Nothing else may lie in it: what is old is removed."""
    return cache_root() / "app-uploads"


def made_uploads_folder() -> Path:
    """The folder, there, of mode 700 and swept. Raises DdvizError where it can't be, or is another user's."""
    folder = uploads_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _require_own(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise DdvizError(
            f"{folder}: can't keep uploads there ({error.strerror}); set DDVIZ_CACHE to another folder"
        ) from None
    bytes_after_sweeping(folder)
    return folder


def bytes_after_sweeping(folder: Path) -> int:
    """What the folder holds once files older than a day and parts of broken-off uploads are removed."""
    now, total = time.time(), 0
    for path, found in _files(folder):
        age = now - found.st_mtime
        is_part = path.parent == folder and path.name.startswith("tmp")  # as Gradio names them
        is_old = age > (PART_S if is_part else DAY_S)
        if not (is_old and _is_removed(path, folder)):
            total += found.st_size
    return total


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise PermissionError(0, "it is a link")
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise PermissionError(0, "it is another user's")


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Other apps may remove files and folders meanwhile; links are not followed."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue


def _is_removed(path: Path, folder: Path) -> bool:
    """Removes the file, and its own folder where nothing else is in it."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    try:
        if path.parent != folder:
            path.parent.rmdir()
    except OSError:
        pass  # another file is in it, or another app was faster
    return True
