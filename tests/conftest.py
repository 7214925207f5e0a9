"""What every test may use: a chromium driven through playwright (browser.py), tiny models, an engine
process."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.browser import launched

os.environ["TRITON_INTERPRET"] = "1"  # GPU kernels run on the CPU; Triton reads it when it is first imported
os.environ["OMP_NUM_THREADS"] = "1"  # so does torch: two threads spin against each other in a small test


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    yield from launched()


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


@pytest.fixture(scope="session")
def _one_engine_process(tiny_folders: dict[str, tuple[Path, Path]]) -> Iterator[Any]:
    from ddviz.engines.base import EngineOptions
    from ddviz.engines.process import EngineProcess

    target, draft = map(str, tiny_folders["llama"])
    engine = EngineProcess(EngineOptions(target=target, draft=draft, device="cpu"))
    yield engine
    engine.close(kill=True)


@pytest.fixture(scope="module")
def engine_process(_one_engine_process: Any) -> Any:
    """An EngineProcess on the tiny Llama pair, ready: one for all tests, since a child loads for seconds."""
    return made_ready(_one_engine_process)


def made_ready(engine: Any, seconds: float = 120) -> Any:
    """Ends what a test left running, and starts the child again where a test left it dead."""
    for trace in engine.runs():
        engine.stop(trace)
    if engine.status().state in ("off", "failed"):
        engine.restart()
    deadline = time.monotonic() + seconds
    while engine.status().state != "ready" or engine.runs():
        assert time.monotonic() < deadline, f"still {engine.status()}; log {engine.log()}"
        time.sleep(0.01)
    return engine


# how long an example takes says how busy the machine is
hypothesis.settings.register_profile("ddviz", deadline=None)
hypothesis.settings.load_profile("ddviz")
