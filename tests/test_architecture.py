"""Imports point one way: tree <- trace <- {viewer, {analysis, engines} <- check}, all <- app, cli."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ddviz

PACKAGE = Path(ddviz.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "vendor" not in path.parts)
STANDARD = sys.stdlib_module_names

# What a part may import of ddviz beside itself. errors, the cache and the version are everybody's.
MAY_IMPORT: dict[str, set[str]] = {
    "tree": set(),
    "trace": {"tree"},
    "check": {"tree", "trace", "analysis", "engines"},  # audit, losslessness run models, the doctor does not
    "analysis": {"tree", "trace"},
    "engines": {"tree", "trace"},
    "viewer": {"tree", "trace"},
    "learn": {"tree", "trace", "check", "analysis", "viewer"},
    "bench": {"tree", "trace", "engines"},
    "temptest": {"tree", "trace", "check", "analysis", "engines"},
    "temptest_report": {"temptest"},
    "app": {"tree", "trace", "check", "analysis", "engines", "viewer", "learn"},
    "cli": {
        *("tree", "trace", "check", "analysis", "engines", "viewer", "learn", "app"),
        *("bench", "temptest", "temptest_report"),
    },
    "errors": set(),
    "cache": set(),
    "__init__": set(),
}
COMMON = {"errors", "cache", "__init__"}


@cache
def imports_of(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    return set(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "ddviz")


def part_of(module: str) -> str:
    """ddviz.trace.reader -> trace; ddviz -> __init__."""
    part = module.split(".")[1] if "." in module else "__init__"
    return part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file() else "__init__"


def own_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = own_part(path)
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what {part} may import"
    used = {part_of(name) for name in imports_of(path) if name.split(".")[0] == "ddviz"}
    assert used <= MAY_IMPORT[part] | COMMON | {part}


def test_the_sglang_plugin_is_imported_nowhere_else() -> None:
    """Only SGLang loads it, through its entry point."""
    for path in MODULES:
        if "sglang_plugin" not in path.parts:
            assert not [name for name in imports_of(path) if "sglang_plugin" in name], path


def test_sglang_is_imported_by_its_plugin_alone() -> None:
    for path in MODULES:
        if "sglang_plugin" not in path.parts:
            names = {name.split(".")[0] for name in imports_of(path)}
            assert not names & {"sglang", "sgl_kernel"}, path


def test_tree_imports_numpy_and_nothing_else() -> None:
    for path in MODULES:
        if own_part(path) == "tree":
            assert {name.split(".")[0] for name in imports_of(path)} - STANDARD <= {"numpy", "ddviz"}, path


def test_trace_imports_neither_torch_nor_a_tokenizer() -> None:
    allowed = {"ddviz", "numpy", "msgspec", "zstandard", "rich"}
    for path in MODULES:
        if own_part(path) == "trace":
            assert {name.split(".")[0] for name in imports_of(path)} - STANDARD <= allowed, path


HEAVY = ("torch", "gradio", "sglang", "transformers", "safetensors", "gguf", "pandas")


@pytest.mark.parametrize(
    "module",
    [
        "ddviz",
        "ddviz.tree",
        "ddviz.trace",
        "ddviz.trace.render",
        "ddviz.trace.importers",
        "ddviz.engines.base",
        "ddviz.check.doctor",
    ],
)
def test_reading_traces_loads_nothing_heavy(module: str) -> None:
    """Replay works where torch is broken, and `import ddviz` is quick."""
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_fetching_loads_torch_only_to_convert() -> None:
    code = (
        "import sys; from ddviz.engines.torch_engine import fetch; fetch.demo_target_is_cached(); "
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_opens_with_its_place_in_the_house(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path}: no docstring"
