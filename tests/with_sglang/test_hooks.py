"""The hooks change SGLang for DDTREE and for nothing else."""

from types import SimpleNamespace

import pytest
import torch

from ddviz.engines.sglang_plugin import hooks


def runner(algorithm: str, is_draft_worker: bool):
    model_runner = SimpleNamespace(
        spec_algorithm=SimpleNamespace(name=algorithm), is_draft_worker=is_draft_worker
    )
    return SimpleNamespace(model_runner=model_runner, buffers=SimpleNamespace(custom_mask="the mask"))


@pytest.mark.parametrize(
    ("algorithm", "is_draft_worker", "mask"),
    [("DDTREE", False, "the mask"), ("DDTREE", True, None), ("DFLASH", False, None)],
)
def test_only_the_targets_verify_of_ddtree_is_captured_with_its_mask(algorithm, is_draft_worker, mask):
    made = hooks.capture_with_mask(
        lambda _runner, _tokens: SimpleNamespace(custom_mask=None), runner(algorithm, is_draft_worker), 17
    )
    assert made.custom_mask == mask


def test_the_relay_carries_no_hidden_states_for_ddtree():
    from sglang.srt.speculative.spec_utils import spec_need_hidden_states

    def args(algorithm):
        return SimpleNamespace(speculative_algorithm=algorithm, enable_multi_layer_eagle=False)

    assert spec_need_hidden_states(args("DDTREE")) is False
    assert spec_need_hidden_states(args("EAGLE")) is True


def test_an_eager_draft_keeps_the_dtype_of_its_embeddings():
    """SGLang's own method, of one runner; its answer is otherwise left as it is."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    runner = object.__new__(ModelRunner)
    runner.is_generation, runner._pp_kwargs = True, lambda _tensors: {"other": 1}
    forward = SimpleNamespace(input_embeds=torch.ones((2, 3)), replace_embeds=None, replace_positions=None)
    assert runner._extend_forward_kwargs(forward, None)["input_embeds"].dtype == torch.bfloat16
    hooks.keep_dtype_of_embeddings(runner)
    kwargs = runner._extend_forward_kwargs(forward, None)
    assert kwargs["input_embeds"] is forward.input_embeds and kwargs["other"] == 1
    forward.input_embeds = None
    assert "input_embeds" not in runner._extend_forward_kwargs(forward, None)


def request(**given):
    params = {"min_p": 0.0, "sampling_seed": None, "custom_params": None, **given}
    return SimpleNamespace(
        return_logprob=False, return_hidden_states=False, sampling_params=SimpleNamespace(**params)
    )


@pytest.fixture
def published(settings):
    """A scheduler's process: its ServerArgs published where SGLang's functions look them up."""
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    with get_context().preserve_config():
        yield lambda **more: get_context().set_server_args(ServerArgs(**{**settings, **more}))


def test_the_scheduler_refuses_requests_that_would_be_served_as_if_they_had_not_asked(published):
    from sglang.srt.managers.scheduler import validate_dflash_request

    published(speculative_ddtree_budget=8)
    assert validate_dflash_request(request(), True) is None
    assert "min_p" in validate_dflash_request(request(min_p=0.2), True)
    assert "sampling_seed" in validate_dflash_request(request(sampling_seed=1), True)
    over = request(custom_params={"ddtree": {"budget": 9}})
    assert "must be an integer in [1, 8]" in validate_dflash_request(over, True)
    for overlap in (True, False):  # without it SGLang lets this one pass, and answers without them
        states = request()
        states.return_hidden_states = True
        assert "does not support return_hidden_states" in validate_dflash_request(states, overlap)
    logprobs = request()
    logprobs.return_logprob = True
    assert validate_dflash_request(logprobs, True).startswith("DDTREE speculative decoding does not support")


def test_without_a_cap_of_its_own_a_request_may_ask_up_to_the_budget(published):
    from sglang.srt.managers.scheduler import validate_dflash_request

    published(speculative_ddtree_budget=8, speculative_ddtree_topk_cap=0)
    assert validate_dflash_request(request(custom_params={"ddtree": {"topk_cap": 8}}), True) is None
    assert "[0, 8]" in validate_dflash_request(request(custom_params={"ddtree": {"topk_cap": 9}}), True)


def test_dflash_requests_are_judged_by_sglang_alone(published):
    from sglang.srt.managers.scheduler import validate_dflash_request

    published(speculative_algorithm="DFLASH")
    assert validate_dflash_request(request(min_p=0.2, sampling_seed=1), True) is None
