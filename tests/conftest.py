"""What every test may use: `browser`, a chromium driven through playwright (browser.py), and tiny models."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import launched

os.environ["TRITON_INTERPRET"] = "1"  # GPU kernels run on the CPU; Triton reads it when it is first imported


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    yield from launched()


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Torch with one thread: two spin against each other in a small test."""
    import torch  # only where it is used

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """family -> (target folder, drafter folder), random and tiny."""
    from tests.tiny_pair import save_drafter, save_target  # loads torch: only where it is used

    root = tmp_path_factory.mktemp("tiny")
    targets = {family: save_target(root / family, family) for family in ("llama", "qwen3")}
    return {
        family: (target, save_drafter(root / f"{family}-dflash", target))
        for family, target in targets.items()
    }
