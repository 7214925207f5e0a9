"""A real chromium for the tests that need one: the viewer's and the app's.

`tests/conftest.py` offers the session fixture `browser`. Where chromium is missing such a test is skipped
with the line to type; with CI=true or DDVIZ_REQUIRE_BROWSER=1 it fails instead, so that nothing goes unseen.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

INSTALL = "no chromium on this machine; install it with: apt-get install chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def is_required() -> bool:
    return os.environ.get("CI") == "true" or os.environ.get("DDVIZ_REQUIRE_BROWSER") == "1"


def launched() -> Iterator[Any]:
    """Body of the fixture: one chromium for the whole session."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        executable = None
    if executable is None:
        (pytest.fail if is_required() else pytest.skip)(INSTALL)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


class Watched:
    """A page and everything on it that should not have happened."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.trouble.append(f"exception: {error}"))
        page.on("console", lambda m: m.type == "error" and self.trouble.append(f"console: {m.text}"))
        page.on("request", self._request)

    def _dialog(self, dialog: Any) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file://", "http://127.0.0.1", "http://localhost", "data:", "blob:")):
            self.trouble.append(f"request: {request.url}")


def wait_until(page: Any, expression: str, seconds: float = 10) -> None:
    """Until a JavaScript expression holds. Playwright's own wait needs eval, which exported pages forbid."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"still not true: {expression}"
        page.wait_for_timeout(20)


@contextmanager
def watched_page(browser: Any, width: int = 1280, height: int = 800, **context: Any) -> Iterator[Watched]:
    """A fresh page; after the block the test fails if it saw a dialog, an exception or a foreign request."""
    opened = browser.new_context(viewport={"width": width, "height": height}, **context)
    opened.set_default_timeout(10_000)
    watched = Watched(opened.new_page())
    try:
        yield watched
    finally:
        opened.close()
    assert watched.trouble == []
