"""Tiny random pairs, saved once a session and loaded with one thread (two spin against each other in a small test)."""

import pytest
import torch

from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.models import load_pair
from tests.tiny_pair import save_drafter, save_target


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """family -> (target folder, drafter folder)"""
    root = tmp_path_factory.mktemp("tiny")
    targets = {family: save_target(root / family, family) for family in ("llama", "qwen3")}
    return {family: (target, save_drafter(root / f"{family}-dflash", target)) for family, target in targets.items()}


@pytest.fixture(scope="session", params=["llama", "qwen3"])
def family(request):
    return request.param


@pytest.fixture(scope="session")
def engine(tiny_folders, family) -> TorchEngine:
    return TorchEngine(load_pair(*map(str, tiny_folders[family])))


@pytest.fixture(scope="session")
def llama(tiny_folders) -> TorchEngine:
    return TorchEngine(load_pair(*map(str, tiny_folders["llama"])))
