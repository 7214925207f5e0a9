"""The app in a real browser, used as a person does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddviz.app.main import launch
from tests.app.conftest import free_port
from tests.browser import LIMIT_MS, Watched

LOADS = 3  # events that a page sends when it opens
STATUSES = ("root", "accepted", "rejected", "unreached", "bonus")


@contextmanager
def served_app(engine: Any, runs: Path, samples: Path, requests: Path | None = None) -> Iterator[str]:
    """The app's address, while it is served from this process."""
    page, url = launch(engine, runs=runs, samples=samples, port=free_port(), block=False, requests=requests)
    try:
        yield url
    finally:
        page.close()


class AppPage:
    """One browser page on the app. Playwright's selectors see into the viewer's shadow root."""

    def __init__(self, watched: Watched, url: str) -> None:
        self.watched, self.page = watched, watched.page
        self.page.set_default_timeout(LIMIT_MS)
        self.answers = 0  # to events of the page
        watched.on("response", self._on_response)
        self.page.goto(url)
        self._wait_until_loaded()

    def assert_quiet(self) -> None:
        """No console error, no exception, no dialog, no request to another host."""
        assert self.watched.trouble == []

    def reload(self) -> None:
        self.answers = 0
        self.page.reload()
        self._wait_until_loaded()

    def _on_response(self, response: Any) -> None:
        self.answers += response.url.endswith("/run/predict")

    def _wait_until_loaded(self) -> None:
        """Both tabs have asked what they should hold, and been told: what is typed from here on stays."""
        while self.answers < LOADS:
            self.page.wait_for_timeout(20)
        self.page.locator(".ddviz-control-generate").wait_for(state="attached")

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    # --- Live

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def press(self, name: str) -> None:
        self.page.wait_for_function(f"() => {_find_button(name)}?.disabled === false")
        self.button(name).click()

    def generate(self) -> None:
        """Start a run and wait until it, not the one before, is on screen."""
        self._mark_view_as_old()
        self.press("Generate")
        self.wait_for_new_view()

    def fill(self, label: str, text: str) -> None:
        field = self.page.get_by_label(label, exact=True)
        field.fill(text)
        field.blur()

    def value(self, label: str) -> str:
        return self.page.get_by_label(label, exact=True).input_value()

    def wait_for_state(self, state: str) -> None:
        self.page.locator(f".ddviz-bar[data-state='{state}']").wait_for()

    def problem(self) -> str:
        """The sentence under the buttons, once there is one."""
        self.page.locator(".ddviz-problem:visible").wait_for()
        return self.page.locator(".ddviz-problem").inner_text()

    # --- Replay

    def pick(self, label: str, option: str) -> None:
        self._mark_view_as_old()
        self.page.get_by_label(label, exact=True).click()
        self.page.get_by_role("option", name=option).first.click()
        self.wait_for_new_view()

    def drop(self, path: Path) -> None:
        self._mark_view_as_old()
        self.page.locator("input[type=file]").set_input_files(path)

    def _mark_view_as_old(self) -> None:
        self.page.evaluate(
            "document.querySelectorAll('.ddviz-host').forEach((host) => (host.dataset.old = '1'))"
        )

    def wait_for_new_view(self) -> None:
        self.viewer().locator(".ddviz-host:not([data-old]) .ddviz-chunk").first.wait_for(state="attached")

    # --- the viewer of the tab that is shown

    def viewer(self) -> Any:
        return self.page.locator(".ddviz-stage:visible")

    def badge(self) -> str:
        return self.viewer().locator(".ddviz-badge").inner_text()

    def text(self) -> str:
        return self.viewer().locator(".ddviz-output").inner_text()

    def steps(self) -> int:
        """Steps whose text has arrived; that of one may be in two chunks."""
        return 1 + int(self.viewer().locator(".ddviz-chunk").last.get_attribute("data-step"))

    def wait_for_steps(self, count: int) -> None:
        self.viewer().locator(f".ddviz-chunk[data-step='{count - 1}']").first.wait_for(state="attached")

    def wait_for_live_tree(self) -> None:
        """The tree of steps that may fly by, over a canvas without elements."""
        self.viewer().locator("[role='tree'][aria-label^='Draft tree of step']").wait_for()

    def wait_for_tree(self) -> None:
        self.viewer().locator("g[role='treeitem']").first.wait_for()

    def step_shown(self) -> str:
        return self.viewer().locator(".ddviz-tree-pane .ddviz-pane-head").inner_text()

    def statuses(self) -> dict[str, int]:
        """How many nodes of each status the tree shows."""
        nodes = self.viewer().locator
        return {status: nodes(f"g[role='treeitem'].ddviz-{status}:visible").count() for status in STATUSES}

    def token_labels(self) -> list[str]:
        return self.viewer().locator("g[role='treeitem']:visible .ddviz-label").all_inner_texts()


def _find_button(name: str) -> str:
    return f"[...document.querySelectorAll('button')].find((b) => b.textContent === {name!r})"
