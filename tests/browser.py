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
LIMIT_MS = 60_000  # of every wait: on a busy machine all takes several times as long
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
        _idle.clear()
        chromium.close()


class Watched:
    """A page and everything on it that should not have happened."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.trouble: list[str] = []
        self.is_changed = False  # for good: no other test may have the page
        self._listeners: list[tuple[str, Any]] = []
        self.on("dialog", self._dialog)
        self.on("pageerror", lambda error: self.trouble.append(f"exception: {error}"))
        self.on("console", lambda m: m.type == "error" and self.trouble.append(f"console: {m.text}"))
        self.on("request", self._request)

    def on(self, event: str, listener: Any) -> None:
        """Listen until `end`."""
        self.page.on(event, listener)
        self._listeners.append((event, listener))

    def at_start(self, script: str) -> None:
        """Run a script first in everything that the page opens from now on."""
        self.page.add_init_script(script)
        self.is_changed = True

    def end(self) -> None:
        for event, listener in self._listeners:
            self.page.remove_listener(event, listener)
        self._listeners.clear()

    def _dialog(self, dialog: Any) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file://", "http://127.0.0.1", "http://localhost", "data:", "blob:")):
            self.trouble.append(f"request: {request.url}")


def wait_until(page: Any, expression: str, seconds: float = LIMIT_MS / 1000) -> None:
    """Until a JavaScript expression holds. Playwright's own wait needs eval, which exported pages forbid."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"still not true: {expression}"
        page.wait_for_timeout(20)


# A new page starts processes of chromium, which takes longer than most tests do with it: one that a test has
# left in order waits here, empty, for the next.
_idle: list[Any] = []


@contextmanager
def watched_page(browser: Any, width: int = 1280, height: int = 800, **context: Any) -> Iterator[Watched]:
    """An empty page; after the block the test fails if it saw a dialog, an exception or a foreign request.

    context  settings of a browser context of its own, which is closed after the block
    """
    if context or not _idle:
        opened = browser.new_context(viewport={"width": width, "height": height}, **context)
        page = opened.new_page()
    else:
        page = _idle.pop()
        page.set_viewport_size({"width": width, "height": height})
    page.set_default_timeout(LIMIT_MS)
    watched = Watched(page)
    try:
        yield watched
        page.evaluate("0")  # what the page has said by now has arrived
    except BaseException:
        page.context.close()
        raise
    watched.end()
    if context or watched.trouble or watched.is_changed:
        page.context.close()
    else:
        _empty(page)
        _idle.append(page)
    assert watched.trouble == [], watched.trouble


def _empty(page: Any) -> None:
    """As if new: blank, alone, the pointer outside."""
    for other in page.context.pages:
        if other is not page:
            other.close()
    page.evaluate("try { localStorage.clear() } catch {}")  # which lessons were answered
    page.goto("about:blank")
    page.mouse.move(-10, -10)
