"""What every test may use: `browser`, a chromium driven through playwright (see tests/browser.py)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import launched


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    yield from launched()
