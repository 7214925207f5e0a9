"""What happens before a server serves: registration, flags, settings derived, settings refused."""

import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from sglang.srt.server_args import ServerArgs, prepare_server_args

from ddviz.engines.sglang_plugin import hooks, plugin
from tests.tiny_pair import BLOCK


def started(settings, **more):
    return ServerArgs(**{**settings, **more})


def test_the_entry_point_registered_the_algorithm_once():
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    algorithm = SpeculativeAlgorithm.from_string("DDTREE")
    plugin.register()
    assert SpeculativeAlgorithm.from_string("ddtree") is algorithm
    assert algorithm.is_dflash_family() and not algorithm.is_eagle()


def test_the_algorithm_answers_everything_that_the_scheduler_asks_of_a_built_in_one():
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    asked = {
        name
        for name, value in vars(SpeculativeAlgorithm).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    algorithm = SpeculativeAlgorithm.from_string("DDTREE")
    missing = sorted(name for name in asked if not hasattr(algorithm, name))
    assert missing == []


def test_every_hook_is_applied_where_sglang_calls_it():
    import pkgutil

    hooks.assert_applied()
    for target in hooks.HOOKS:
        assert hasattr(pkgutil.resolve_name(target), "__wrapped__"), target
    from sglang.srt.managers import scheduler

    assert hasattr(scheduler.validate_dflash_request, "__wrapped__")


def test_a_hook_that_was_not_applied_is_named(monkeypatch):
    monkeypatch.setitem(hooks.HOOKS, "sglang.srt.nowhere.function", hooks.row_for_two_steps)
    with pytest.raises(RuntimeError, match=r"sglang\.srt\.nowhere\.function"):
        hooks.assert_applied()


def test_defaults_give_a_tree_of_17_verified_nodes(settings):
    args = started(settings)
    assert (args.speculative_ddtree_budget, args.speculative_ddtree_topk_cap) == (16, 4)
    assert args.speculative_dflash_block_size == BLOCK  # the tiny drafter's
    assert args.speculative_num_draft_tokens == 17  # T: root and budget
    assert args.speculative_draft_attention_backend == "triton"
    assert args.max_running_requests == 16


def test_a_small_budget_still_verifies_a_whole_block(settings):
    assert started(settings, speculative_ddtree_budget=2).speculative_num_draft_tokens == BLOCK


def test_flags_go_through_the_command_line_and_a_pickle(settings):
    args = prepare_server_args(
        [
            *("--model-path", settings["model_path"]),
            *("--speculative-draft-model-path", settings["speculative_draft_model_path"]),
            *("--device", "cuda", "--attention-backend", "triton", "--speculative-algorithm", "ddtree"),
            *("--speculative-ddtree-budget", "64", "--speculative-ddtree-topk-cap", "0"),
        ]
    )
    copy = pickle.loads(pickle.dumps(args))
    for each in (args, copy):
        assert each.speculative_algorithm == "DDTREE"
        assert (each.speculative_ddtree_budget, each.speculative_ddtree_topk_cap) == (64, 0)


def test_a_server_of_another_algorithm_is_left_alone(settings):
    args = started(settings, speculative_algorithm="DFLASH")
    assert args.speculative_num_draft_tokens == BLOCK
    from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len

    assert get_req_to_token_extra_context_len(args) == 4 + BLOCK


def test_a_row_of_slots_has_room_for_two_steps(settings):
    from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len

    assert get_req_to_token_extra_context_len(started(settings)) == 2 * 17


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention_backend": "flashinfer"}, "needs --attention-backend triton"),
        ({"prefill_attention_backend": "fa3"}, "needs --attention-backend triton"),
        (
            {"speculative_draft_attention_backend": "fa3"},
            "--speculative-draft-attention-backend triton",
        ),
        ({"page_size": 16}, "needs --page-size 1, got 16"),
        ({"speculative_ddtree_budget": 0}, "--speculative-ddtree-budget is 0, must be an integer in [1"),
        ({"speculative_ddtree_budget": 1025}, "must be an integer in [1, 1024]"),
        ({"speculative_ddtree_budget": "16"}, "--speculative-ddtree-budget is '16', must be an integer"),
        ({"speculative_ddtree_budget": 16.5}, "is 16.5, must be an integer"),
        ({"speculative_ddtree_topk_cap": True}, "is True, must be an integer"),
        ({"speculative_dflash_block_size": 500}, "block size is 500, must be in [2, 256]"),
        ({"speculative_ddtree_topk_cap": -1}, "--speculative-ddtree-topk-cap is -1"),
        ({"speculative_draft_model_path": None}, "needs --speculative-draft-model-path"),
        ({"speculative_accept_threshold_single": 0.0}, "must be in (0, 1]"),
        ({"speculative_accept_threshold_acc": 1.5}, "must be in (0, 1]"),
        ({"pp_size": 2}, "--pp-size 1 only, got 2"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode null only"),
        ({"speculative_draft_window_size": 64}, "--speculative-draft-window-size"),
    ],
)
def test_what_a_tree_cannot_do_is_refused_in_one_sentence(settings, change, words):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the words are looked for below
        started(settings, **change)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_model_that_is_no_dflash_drafter_is_refused(settings):
    with pytest.raises(ValueError, match="is it a DFlash drafter"):
        started(settings, speculative_draft_model_path=settings["model_path"])


@pytest.mark.parametrize(("folder", "hooked"), [(None, "4 + 0"), ("traces", "4 + 13")])
def test_flags_reach_a_spawned_process_and_a_server_that_traces_has_more_hooks(
    settings, stub_folder, tmp_path, folder, hooked
):
    """As SGLang's scheduler starts: a new process that loads the plugins and unpickles the arguments."""
    script = Path(__file__).with_name("child.py")
    args = pickle.dumps(started(settings, speculative_ddtree_budget=24))
    command = [sys.executable, str(script), str(stub_folder)]
    environment = {**os.environ, **({"DDVIZ_TRACE_DIR": str(tmp_path / folder)} if folder else {})}
    done = subprocess.run(command, input=args, capture_output=True, check=False, env=environment)
    last = done.stdout.decode().strip().splitlines()[-1:]
    assert last == [f"24 DDTREE DDTreeWorker {hooked} hooks"], done.stderr.decode()[-2000:]


def test_another_version_of_sglang_is_refused_with_the_one_that_works(settings, stub_folder):
    script = Path(__file__).with_name("child.py")
    command = [sys.executable, str(script), str(stub_folder), "0.5.23", settings["model_path"]]
    command.append(settings["speculative_draft_model_path"])
    done = subprocess.run(command, capture_output=True, check=False)
    last = done.stdout.decode().strip().splitlines()[-1:]
    assert last and "DDTREE supports sglang 0.5.17, this is 0.5.23" in last[0], done.stderr.decode()[-2000:]
    assert "pip install 'ddviz[sglang]'" in last[0]


def test_plugin_app_and_package_name_the_same_sglang():
    from importlib.metadata import requires

    from ddviz.engines.sglang_server.asking import TESTED

    assert plugin.SUPPORTED_SGLANG == TESTED
    pinned = [line.split(";")[0].strip() for line in requires("ddviz") if line.startswith("sglang=")]
    assert pinned == [f"sglang=={TESTED}"]
