"""What the plugin says of its settings, without SGLang."""

import pytest

from ddviz.engines.sglang_plugin import plugin


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """None of the environment's, and nothing is registered."""
    for name in ("DDVIZ_TRACE", "DDVIZ_TRACE_DIR", "DDVIZ_TRACE_LIMIT", "DDVIZ_TRACE_ONLY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plugin, "_register_ddtree", lambda: None)


def test_a_level_without_a_folder_is_warned_of(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("DDVIZ_TRACE", "off")
    plugin.register()
    assert not caplog.records
    monkeypatch.setenv("DDVIZ_TRACE", "standard")
    plugin.register()
    assert "DDVIZ_TRACE is set without DDVIZ_TRACE_DIR: nothing is traced" in caplog.text
    caplog.clear()
    monkeypatch.setenv("DDVIZ_TRACE_DIR", str(tmp_path))
    plugin.register()
    assert not caplog.records


def test_a_limit_with_its_g_forgotten_ends_the_server_with_a_sentence(monkeypatch):
    monkeypatch.setenv("DDVIZ_TRACE_LIMIT", "20")
    with pytest.raises(SystemExit, match="ddviz: DDVIZ_TRACE_LIMIT is '20', must be 1M or more"):
        plugin.register()
