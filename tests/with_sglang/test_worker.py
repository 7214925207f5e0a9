"""The worker's step on the CPU: SGLang's classes around it, the plugin's kernels in Triton's interpreter,
twins from ddviz/tree in place of sglang-kernel's, tables for target and drafter.

What it says must be what the target says alone, and what it traced must pass the doctor.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from ddviz.check.doctor import examine
from ddviz.engines.sglang_plugin.algorithm import worker_class
from ddviz.engines.sglang_plugin.faults import chosen, told
from ddviz.engines.sglang_plugin.penalties import Penalties
from ddviz.engines.sglang_plugin.tracing.ddtree_step import DDTreeStep
from ddviz.engines.sglang_plugin.tracing.notes import Notes
from ddviz.engines.sglang_plugin.tracing.tracer import NoTracer
from ddviz.errors import RefusedError
from ddviz.trace import load
from ddviz.trace.schema import STAGES
from tests.engines.sglang_plugin import twins

VOCABULARY, BLOCK, BUDGET, CAP, WIDTH, ROW_WIDTH = 24, 3, 4, 2, 5, 64
EOS = 0


class Tables:
    """Target and drafter: the next token's logits depend on the last token alone."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.target = torch.randn((VOCABULARY, VOCABULARY), generator=generator) * 2
        self.draft = self.target + torch.randn((VOCABULARY, VOCABULARY), generator=generator)


class OneRank:
    world_size, rank_in_group = 1, 0


@pytest.fixture
def made(monkeypatch, tmp_path):
    """worker, tables: a DDTreeWorker whose models are tables, on the CPU."""
    from ddviz.engines.sglang_plugin import acceptance
    from ddviz.engines.sglang_plugin import worker as module
    from ddviz.engines.sglang_plugin.commit import KVPacker
    from ddviz.engines.sglang_plugin.draft_head import DraftHead
    from ddviz.engines.sglang_plugin.step_buffers import StageGraphs

    tables = Tables()
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)  # the CPU has none
    monkeypatch.setattr(module, "get_tp_group", OneRank)
    thresholds = SimpleNamespace(
        speculative_accept_threshold_single=1.0, speculative_accept_threshold_acc=1.0
    )
    monkeypatch.setattr(module, "get_spec", lambda: thresholds)
    monkeypatch.setattr(module, "_prepare_dflash_draft_block_unchecked", prepare_block)
    monkeypatch.setattr(module, "ForwardBatch", lambda **given: SimpleNamespace(**given))
    prepared = lambda self, batch, _worker: (forward_of(self, batch), False)  # noqa: E731
    monkeypatch.setattr(module.DDTreeVerifyInput, "prepare_for_verify", prepared)
    monkeypatch.setattr(acceptance, "verify_tree_greedy", twins.verify_tree_greedy)
    sampling = twins.tree_speculative_sampling_target_only
    monkeypatch.setattr(acceptance, "tree_speculative_sampling_target_only", sampling)

    rows = torch.arange(8 * ROW_WIDTH, dtype=torch.int32).view(8, ROW_WIDTH) + 1
    embeddings = lambda ids: torch.nn.functional.one_hot(ids, VOCABULARY).float()  # noqa: E731
    target_runner = SimpleNamespace(
        attn_backend=SimpleNamespace(verify_mask=None),
        req_to_token_pool=SimpleNamespace(req_to_token=rows),
        model=SimpleNamespace(get_input_embeddings=lambda: embeddings),
    )
    worker = object.__new__(module.DDTreeWorker)
    forward = lambda **given: target_forward(tables, given["forward_batch"])  # noqa: E731
    worker._target_worker = SimpleNamespace(model_runner=target_runner, forward_batch_generation=forward)
    worker.model_runner, worker.device = target_runner, "cpu"
    worker.block_size, worker.tree_width, worker.budget, worker.topk_cap = BLOCK, WIDTH, BUDGET, CAP
    worker.candidates, worker._whole_mask_rows, worker._limits = 6, False, []
    worker._mask_token_id, worker._draft_block_spec_info = 1, None
    worker._offsets = torch.arange(BLOCK)
    worker._graphs, worker._path_hidden = StageGraphs(), None
    worker._draft_block_ids_buf = None
    worker.draft_model_runner = SimpleNamespace(forward=lambda batch: draft_forward(tables, batch))
    worker._timed = False
    worker.head = DraftHead(SimpleNamespace(weight=torch.eye(VOCABULARY)), BLOCK, k=6, tp_group=OneRank())
    kv = torch.zeros((8 * ROW_WIDTH + 1, 1))
    worker._packer = KVPacker(SimpleNamespace(kv_buffer=[kv]))
    worker._penalties = Penalties(8, VOCABULARY, "cpu")
    worker._reserve(8)
    worker._tracer = NoTracer()
    worker.appended = []  # how many rows each step gave to the drafter
    worker._append_target_hidden_to_draft_kv_by_loc = lambda **given: worker.appended.extend(
        given["commit_lens"].tolist()
    )
    return worker, tables


def prepare_block(
    *, bonus_tokens, prefix_lens, block_ids_out, mask_token_id, positions_out, cache_loc_out, **_
):
    block_ids_out.fill_(mask_token_id)
    block_ids_out[:, 0] = bonus_tokens
    positions_out.copy_(prefix_lens.unsqueeze(1) + torch.arange(BLOCK))
    cache_loc_out.zero_()


def draft_forward(tables, batch):
    """The drafter sees the root only: it follows its own best tokens."""
    last = batch.input_ids.view(-1, BLOCK)[:, 0]
    logits = [torch.zeros((len(last), VOCABULARY))]
    for _ in range(BLOCK - 1):
        logits.append(tables.draft[last])
        last = tables.draft[last].argmax(-1)
    hidden = torch.stack(logits, 1).view(-1, VOCABULARY)
    return SimpleNamespace(can_run_graph=False, logits_output=SimpleNamespace(hidden_states=hidden))


def forward_of(verify_input, batch):
    return SimpleNamespace(input_ids=verify_input.draft_token, positions=verify_input.positions, batch=batch)


def target_forward(tables, forward_batch):
    ids = forward_batch.input_ids
    output = SimpleNamespace(
        next_token_logits=tables.target[ids].clone(), hidden_states=ids.float().unsqueeze(1)
    )
    return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)


class Request(SimpleNamespace):
    is_retracted, finished_reason, cached_tokens, inflight_middle_chunks = False, None, 0, 0
    grammar = None

    def __init__(self, rid, temperature=0.0, max_new_tokens=8, custom=None, **penalties):
        asked = {
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
        }
        params = SimpleNamespace(
            temperature=temperature or 1.0,
            top_k=1 if temperature == 0 else 1 << 30,
            top_p=1.0,
            sampling_seed=None,
            max_new_tokens=max_new_tokens,
            stop_token_ids=set(),
            custom_params={"ddviz": {}, **(custom or {})},
            **{**asked, **penalties},
        )
        tokenizer = SimpleNamespace(eos_token_id=EOS, additional_stop_token_ids=None)
        super().__init__(
            rid=rid, origin_input_ids=[5, 6, 7], output_ids=[], sampling_params=params, tokenizer=tokenizer
        )
        self.kv = SimpleNamespace(kv_allocated_len=ROW_WIDTH)

    def finished(self):
        return self.finished_reason is not None

    @property
    def output_ids_through_stop(self):
        return self.output_ids[: self.sampling_params.max_new_tokens]


def sampling_info(reqs, logit_bias=None):
    params = [req.sampling_params for req in reqs]
    greedy = [p.top_k == 1 for p in params]
    return SimpleNamespace(
        temperatures=torch.tensor([[p.temperature] for p in params]),
        top_ks=torch.tensor([p.top_k for p in params], dtype=torch.int32),
        is_all_greedy=all(greedy),
        is_any_greedy=any(greedy),
        need_top_k_sampling=False,
        need_top_p_sampling=False,
        has_custom_logit_processor=False,
        sampling_seed=None,
        logit_bias=logit_bias,
    )


def generate(worker, tables, reqs, logit_bias=None):
    """Prefill and steps without overlap, as SGLang's scheduler drives them."""
    first = [int(tables.target[req.origin_input_ids[-1]].argmax()) for req in reqs]
    pool = torch.arange(len(reqs)) + 1
    worker._penalties.prefilled(reqs, pool, torch.tensor(first))
    for req, token in zip(reqs, first, strict=True):
        req.output_ids.append(token)
    worker._tracer.prefilled(reqs)
    lens, roots, forwards = torch.tensor([3] * len(reqs)), torch.tensor(first), 0
    while not all(req.finished() for req in reqs):
        forwards += 1
        batch = SimpleNamespace(
            reqs=reqs,
            seq_lens=lens,
            seq_lens_cpu=lens.clone(),
            seq_lens_sum=int(lens.sum()),
            req_pool_indices=pool,
            forward_mode=ForwardMode.DECODE,
            is_extend_in_batch=False,
            has_grammar=False,
            sampling_info=sampling_info(reqs, logit_bias),
            spec_info=SimpleNamespace(bonus_tokens=roots),
            forward_iter=forwards,
        )
        published = []
        result = worker.forward_batch_generation(batch, on_publish=published.append)
        assert torch.equal(published[0], result.new_seq_lens)
        tokens = result.next_token_ids.view(len(reqs), BLOCK)
        ended, before = [req.finished() for req in reqs], [len(req.output_ids) for req in reqs]
        for i, req in enumerate(reqs):
            if not ended[i]:
                req.output_ids.extend(tokens[i, : result.accept_lens[i]].tolist())
                if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                    req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
        worker._tracer.settled(reqs, ended, before, result)
        lens, roots = result.new_seq_lens, result.next_draft_input.bonus_tokens
    return [req.output_ids_through_stop for req in reqs]


def alone(tables, req, logit_bias=None):
    """Autoregression: one token at a time, penalties by SGLang's rule."""
    said, params = [int(tables.target[req.origin_input_ids[-1]].argmax())], req.sampling_params
    while len(said) < params.max_new_tokens:
        row = tables.target[said[-1]].clone().double()
        for token in set(said):
            row[token] -= params.frequency_penalty * said.count(token) + params.presence_penalty
            row[token] *= params.repetition_penalty if row[token] < 0 else 1 / params.repetition_penalty
        if len(said) < params.min_new_tokens:
            row[EOS] = -torch.inf
        if logit_bias is not None:
            row += logit_bias
        said.append(int(row.argmax()))
    return said


def test_a_greedy_batch_says_what_the_target_says_alone(made):
    worker, tables = made
    reqs = [
        Request("a"),
        Request("b", custom={"ddtree": {"budget": 2, "topk_cap": 1}}),
        Request("c", max_new_tokens=5),
    ]
    reqs[1].origin_input_ids, reqs[2].origin_input_ids = [5, 6, 11], [5, 6, 18]
    assert generate(worker, tables, reqs) == [alone(tables, req) for req in reqs]
    assert max(worker.appended) > 1  # something was accepted


@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 0.9},
        {"presence_penalty": 1.5},
        {"repetition_penalty": 1.5},
        {"min_new_tokens": 8},
    ],
    ids=lambda p: next(iter(p)),
)
def test_penalised_requests_say_what_autoregression_says(made, penalties):
    worker, tables = made
    if "min_new_tokens" in penalties:
        tables.target[:, EOS] += 3.0  # there is something to keep out
    else:
        tables.target[4, 9] = tables.target[4].max() + 1  # unpenalised: 9 4 9 4 ...
    reqs = [Request("a", max_new_tokens=10, **penalties), Request("b", max_new_tokens=10)]
    reqs[1].origin_input_ids = [5, 6, 11]
    assert generate(worker, tables, reqs) == [alone(tables, req) for req in reqs]
    assert alone(tables, reqs[0]) != alone(tables, Request("plain", max_new_tokens=10))


def test_logit_bias_holds_at_every_node(made):
    worker, tables = made
    reqs = [Request("a", max_new_tokens=9)]
    banned = torch.zeros((1, VOCABULARY))
    banned[0, alone(tables, reqs[0])[1:3]] = -100.0
    assert generate(worker, tables, reqs, banned)[0] == alone(
        tables, Request("b", max_new_tokens=9), banned[0].double()
    )


def test_a_greedy_row_beside_sampled_ones_says_what_it_says_alone(made):
    worker, tables = made
    torch.manual_seed(0)
    reqs = [Request("a", temperature=1.0), Request("b"), Request("c", temperature=0.5)]
    said = generate(worker, tables, reqs)
    assert said[1] == alone(tables, reqs[1])
    assert said[0] != said[1]


def worker_with(fault):
    from ddviz.engines.sglang_plugin.faulty_workers import WORKERS

    return WORKERS[fault]


def traced(worker, folder):
    """The worker's tracer, a new one."""
    worker._tracer = tracer = twins.new_tracer(
        folder,
        block_size=BLOCK,
        budget=BUDGET,
        topk_cap=CAP,
        vocab_size=VOCABULARY,
        row_width=ROW_WIDTH,
    )
    notes = Notes(worker.largest_step, worker.head.lists, VOCABULARY, tracer.ring)
    tracer.kind = partial(DDTreeStep, notes)
    return tracer


@pytest.mark.parametrize("presence", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_traced_steps_of_the_worker_pass_the_doctor(made, tmp_path, monkeypatch, temperature, presence):
    worker, tables = made
    monkeypatch.setattr(worker, "_timed", True)
    tracer = traced(worker, tmp_path)
    reqs = [Request("a", temperature), Request("b", temperature, presence_penalty=presence)]
    said = generate(worker, tables, reqs)
    tracer.writer.close(30)
    traces = {trace.header.request_id: trace for trace in map(load, tmp_path.glob("*.ddviz"))}
    assert tracer.failures == 0
    for req, output in zip(reqs, said, strict=True):
        trace = traces[req.rid]
        assert trace.end.output_ids == output
        assert examine(trace) == []
        assert trace.steps[0].commit.src_slots and trace.steps[0].draft is not None
        assert np.isfinite(trace.steps[0].target.raw.entropy).all()
        for step in trace.steps:
            assert list(step.times_us) == list(STAGES) and all(us > 0 for us in step.times_us.values())


@pytest.mark.parametrize(
    ("fault", "temperature", "rule"),
    [
        ("chain_mask", 0.0, "mask"),
        ("position_by_index", 0.0, "positions"),
        ("kv_not_packed", 0.0, "commit"),
        ("flat_off_by_one", 0.0, "accept-index"),
        ("greedy_kernel_at_temperature", 0.8, "kernel-choice"),
    ],
)
def test_a_fault_of_the_worker_is_in_its_trace_and_named(made, tmp_path, fault, temperature, rule):
    worker, tables = made
    worker.__class__ = worker_with(fault)
    tracer = traced(worker, tmp_path)
    generate(worker, tables, [Request("a", temperature, max_new_tokens=40)])
    tracer.writer.close(30)
    assert tracer.failures == 0
    found = {finding.rule for finding in examine(load(next(tmp_path.glob("*.ddviz"))))}
    assert rule in found


def test_biased_coins_are_the_squares_of_fair_ones(made):
    worker, _ = made
    info, lens = sampling_info([Request("a", 1.0)]), torch.tensor([3])
    drawn = {}
    for kind in (type(worker), worker_with("biased_coin")):
        worker.__class__ = kind
        torch.manual_seed(5)
        drawn[kind.__name__] = worker._draw_coins(info, lens)
    (coins, final), (squared, same) = drawn["DDTreeWorker"], drawn["BiasedCoin"]
    assert torch.equal(squared, coins**2) and torch.equal(final, same)


def test_a_wrong_feature_layer_is_one_below(monkeypatch):
    from ddviz.engines.sglang_plugin.worker import DDTreeWorker

    inner = SimpleNamespace(layers_to_capture=[])
    monkeypatch.setattr(DDTreeWorker, "__init__", lambda self: None)
    names_the_layers = lambda self: setattr(inner, "layers_to_capture", [2, 11, 1])  # noqa: E731
    monkeypatch.setattr(DDTreeWorker, "init_attention_backends", names_the_layers)
    runner = SimpleNamespace(model=SimpleNamespace(model=inner))
    monkeypatch.setattr(DDTreeWorker, "model_runner", runner, raising=False)
    worker = worker_with("wrong_feature_layer")()
    worker.init_attention_backends()
    assert inner.layers_to_capture == [1, 10, 1]


@pytest.mark.parametrize(
    ("fault", "debug", "words"),
    [
        ("upside_down", "1", "must be one of: chain_mask"),
        ("chain_mask", None, "set DDVIZ_DEBUG=1 too"),
        ("chain_mask", "yes", "set DDVIZ_DEBUG=1 too"),
    ],
)
def test_a_server_does_wrong_only_where_it_is_told_to_twice(monkeypatch, fault, debug, words):
    monkeypatch.setenv("DDVIZ_FAULT", fault)
    if debug:
        monkeypatch.setenv("DDVIZ_DEBUG", debug)
    with pytest.raises(RefusedError, match=words):
        chosen()


def test_a_chosen_fault_is_in_the_header_and_a_sound_server_says_nothing(monkeypatch):
    assert chosen() is None and told() == {}
    monkeypatch.setenv("DDVIZ_FAULT", "chain_mask")
    monkeypatch.setenv("DDVIZ_DEBUG", "1")
    assert chosen() == "chain_mask" and told() == {"fault": "chain_mask"}
    assert worker_class(None).__name__ == "ChainMask"
