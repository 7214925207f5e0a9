"""The tracer's hooks on SGLang's own algorithms: what they fit, what is registered, what is told."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddviz.engines.sglang_plugin import hooks, plugin
from ddviz.engines.sglang_plugin.tracing.builtin import start, table
from scripts.gpu import linear_eagle
from scripts.gpu.checks import ENGINES, builtin
from scripts.gpu.lab import DEFAULTS


@pytest.mark.parametrize("name", table.HOOKS)
def test_every_hook_fits_the_function_that_it_is_for(name):
    assert table.misfit(name, table.HOOKS[name]) is None


def test_the_two_that_tell_of_results_fit_too():
    for name, function in hooks.RESULT_HOOKS.items():
        assert table.misfit(name, table.Hook(function, ("batch", "result"))) is None


def test_what_does_not_fit_is_named_with_the_reason():
    there = table.Hook(print, ())
    assert "nowhere" in table.misfit("sglang.srt.nowhere.function", there)
    assert "gone" in table.misfit("sglang.srt.speculative.eagle_utils.gone", there)
    asks = table.Hook(print, ("score_list", "gone", "too"))
    name = "sglang.srt.speculative.eagle_utils.organize_draft_results"
    assert table.misfit(name, asks) == "it has no parameter gone, too"


def child(stub_folder, *more, stdin=b"", **environment):
    command = [sys.executable, str(Path(__file__).with_name("child.py")), str(stub_folder), *more]
    return subprocess.run(
        command, input=stdin, capture_output=True, check=False, env={**os.environ, **environment}
    )


def test_a_server_that_only_traces_has_the_hooks_and_no_ddtree(settings, stub_folder, tmp_path):
    done = child(stub_folder, "only", DDVIZ_TRACE_ONLY="1", DDVIZ_TRACE_DIR=str(tmp_path))
    every = len(table.HOOKS) + len(hooks.RESULT_HOOKS)
    last = done.stdout.decode().strip().splitlines()[-1:]
    assert last == [f"DDTREE None, {every} of {every} hooks applied"], done.stderr.decode()[-2000:]


def test_another_version_of_sglang_is_traced_with_a_warning(stub_folder, tmp_path):
    """With a function gone, its hook is named and the others are there."""
    done = child(stub_folder, "only", "0.5.99", DDVIZ_TRACE_ONLY="1", DDVIZ_TRACE_DIR=str(tmp_path))
    every = len(table.HOOKS) + len(hooks.RESULT_HOOKS)
    told = done.stderr.decode()
    last = done.stdout.decode().strip().splitlines()[-1:]
    assert last == [f"DDTREE None, {every - 1} of {every - 1} hooks applied"], told[-2000:]
    assert "tested with sglang 0.5.17, this is 0.5.99" in told
    assert "does not fit this SGLang: sglang.srt.speculative.eagle_utils.organize_draft_results" in told


def test_trace_only_without_a_folder_registers_nothing_and_says_so(monkeypatch, caplog):
    monkeypatch.setenv("DDVIZ_TRACE_ONLY", "1")
    monkeypatch.delenv("DDVIZ_TRACE_DIR", raising=False)
    before = set(table._registered)
    plugin.register()
    assert "DDVIZ_TRACE_DIR" in caplog.text and table._registered == before


def test_a_trace_only_that_is_no_yes_or_no_is_an_error(monkeypatch):
    monkeypatch.setenv("DDVIZ_TRACE_ONLY", "yes")
    with pytest.raises(SystemExit, match="ddviz: DDVIZ_TRACE_ONLY is 'yes', must be 1"):
        plugin.register()


@pytest.mark.parametrize(
    ("name", "value"), [("DDVIZ_TRACE", "0"), ("DDVIZ_TRACE", "full"), ("DDVIZ_TRACE_LIMIT", "lots")]
)
def test_settings_of_tracing_that_make_no_sense_end_the_server_with_a_sentence(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"ddviz: {name} is '{value}', must be"):
        plugin.register()


@pytest.fixture(scope="module")
def eagle_folder(folders, tmp_path_factory):
    target = Path(folders["model_path"])
    hidden = json.loads((target / "config.json").read_text())["hidden_size"]
    folder = tmp_path_factory.mktemp("eagle")
    linear_eagle.save(target, torch.zeros((hidden, 2 * hidden)), torch.zeros(hidden), folder)
    return folder


@pytest.mark.parametrize("name", builtin.NAMES)
def test_the_engines_of_the_gpu_check_start_as_far_as_they_can_here(name, folders, eagle_folder):
    """Their ServerArgs are accepted, and the header has what the algorithm has."""
    from sglang.srt.server_args import ServerArgs

    draft = str(eagle_folder) if name.startswith("eagle") else folders["speculative_draft_model_path"]
    options = {k: v for k, v in ENGINES[name].items() if k != "trace"}
    options = {"speculative_draft_model_path": draft, **DEFAULTS, **options, "context_length": 512}
    args = ServerArgs(model_path=folders["model_path"], device="cuda", **options)
    runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=100), dtype=torch.bfloat16)
    header = start.header_of(args.speculative_algorithm, args, runner)
    assert header.engine.options["dtype"] == "bfloat16"
    assert header.algorithm == args.speculative_algorithm
    assert (header.block_size, header.topk_cap, header.score_kind) == {
        "dflash-traced": (args.speculative_num_draft_tokens, 1, "none"),
        "ngram-traced": (12, None, "none"),
        "eagle-traced": (4, 4, "prob"),
        "eagle-chain-traced": (4, 1, "none"),
        "eagle-sync-traced": (4, 4, "prob"),
    }[name]
    assert header.budget is None and header.engine.options["speculative_algorithm"] == header.algorithm
    assert (header.draft is None) == (header.algorithm == "NGRAM")
    assert pickle.loads(pickle.dumps(args)).speculative_algorithm == header.algorithm


def test_an_algorithm_that_the_format_has_not_goes_by_the_nearest_and_a_note(folders, eagle_folder):
    args = SimpleNamespace(
        **dict.fromkeys(("dtype", "attention_backend", "context_length"), "auto"),
        **dict.fromkeys(("tp_size", "speculative_num_steps", "speculative_eagle_topk", "random_seed"), 2),
        disable_overlap_schedule=False,
        speculative_algorithm="STANDALONE",
        speculative_num_draft_tokens=5,
        speculative_draft_model_path=str(eagle_folder),
        model_path=folders["model_path"],
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
    )
    runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=100), dtype=torch.bfloat16)
    header = start.header_of("STANDALONE", args, runner)
    assert header.algorithm == "EAGLE" and header.notes == ["SGLang's name of the algorithm: STANDALONE"]
    assert start.header_of("MY_TREE", args, runner).algorithm == "DDTREE"
