"""ddviz's folder in the user's cache: DDVIZ_CACHE, or the system's place for it."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_root() -> Path:
    root = os.environ.get("DDVIZ_CACHE")
    return Path(root).expanduser() if root else user_cache_path("ddviz")
