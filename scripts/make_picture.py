"""Make docs/picture.png, the README's picture: a step of a sample in the page that `ddviz export` writes."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ddviz.trace import load
from ddviz.viewer.html import export_html
from tests.browser import FLAGS

ROOT = Path(__file__).resolve().parents[1]
SAMPLE, STEP = ROOT / "traces/quicksort-t0.6.ddviz", 12


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "page.html"
        export_html(load(SAMPLE), page_file)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(f"{page_file.as_uri()}#step={STEP}")
        page.wait_for_function("() => ddviz.view.state().drawMs !== null")
        page.wait_for_timeout(500)  # what rests until steps rest
        page.screenshot(path=ROOT / "docs/picture.png")
        browser.close()


if __name__ == "__main__":
    main()
