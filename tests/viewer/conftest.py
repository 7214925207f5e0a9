"""The viewer's traces and exported pages, made once."""

import pytest

from ddviz.viewer import export_html
from tests.viewer.fixtures import write_trace


@pytest.fixture(scope="session")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("viewer-traces")
    return {
        "sampled": write_trace(folder / "sampled.ddviz"),
        "greedy": write_trace(folder / "greedy.ddviz", temperature=0.0, seed=5),
        "hostile": write_trace(folder / "hostile.ddviz", hostile=True, steps=20, temperature=0.0),
        "large": write_trace(folder / "large.ddviz", steps=1, budget=1000, topk_cap=0),
    }


@pytest.fixture(scope="session")
def pages(traces):
    return {name: export_html(trace, trace.path.with_suffix(".html")) for name, trace in traces.items()}
