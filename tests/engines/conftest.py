"""Tiny random pairs, loaded."""

import pytest

from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.models import load_pair


@pytest.fixture(scope="session", params=["llama", "qwen3"])
def family(request):
    return request.param


@pytest.fixture(scope="session")
def engine(tiny_folders, family) -> TorchEngine:
    return TorchEngine(load_pair(*map(str, tiny_folders[family])))


@pytest.fixture(scope="session")
def llama(tiny_folders) -> TorchEngine:
    return TorchEngine(load_pair(*map(str, tiny_folders["llama"])))
