"""What tests of the plugin without a GPU have in common."""

import pytest

from tests.engines.sglang_plugin import twins


@pytest.fixture(autouse=True)
def rows_read_by_torch(monkeypatch):
    """In tracing; test_read_rows.py runs the kernel itself."""
    from ddviz.engines.sglang_plugin.tracing import notes, reading

    monkeypatch.setattr(notes, "read_rows", twins.read_rows)
    monkeypatch.setattr(reading, "read_rows", twins.read_rows)
