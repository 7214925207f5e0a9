"""Collected only where SGLang is installed. One process loads the plugin as SGLang does, before any test."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.with_sglang import stub_driver

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="session", autouse=True)
def plugins(stub_folder: Path) -> None:
    """The driver, then every plugin through its entry point: ddviz must be installed in this environment."""
    import torch

    torch.set_num_threads(1)  # tensors are tiny
    stub_driver.load(stub_folder)
    from sglang.srt.plugins import load_plugins

    load_plugins()


@pytest.fixture(autouse=True)
def rows_read_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tracing, where Triton's interpreter is slow; tests/engines/sglang_plugin runs the kernel itself."""
    from ddviz.engines.sglang_plugin.tracing import notes, reading
    from tests.engines.sglang_plugin import twins

    monkeypatch.setattr(notes, "read_rows", twins.read_rows)
    monkeypatch.setattr(reading, "read_rows", twins.read_rows)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny target and a drafter that fits it, as ServerArgs names them."""
    from tests.tiny_pair import save_drafter, save_target

    root = tmp_path_factory.mktemp("tiny")
    target = save_target(root / "target", "llama")
    return {
        "model_path": str(target),
        "speculative_draft_model_path": str(save_drafter(root / "draft", target)),
    }


@pytest.fixture
def settings(folders: dict[str, str]) -> dict[str, Any]:
    """ServerArgs of a DDTREE server, as far as a user must give them."""
    return {
        **folders,
        "device": "cuda",
        "attention_backend": "triton",
        "speculative_algorithm": "DDTREE",
    }
