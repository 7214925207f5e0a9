"""SGLang's own workers, run step by step on the CPU with the tracer's hooks on their functions: its drafting,
tree building, acceptance and KV moves are SGLang's, its Triton kernels run in Triton's interpreter.

In place of what needs a GPU: sglang-kernel's two tree kernels are twins, its tree builder is SGLang's own
Triton version of it, the models are tables, and a ForwardBatch is what they read of it.
"""

import contextlib
import functools
import pkgutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from ddviz.check.doctor import examine
from ddviz.engines.sglang_plugin.tracing.builtin import start, table
from ddviz.trace import load
from tests.engines.sglang_plugin import twins
from tests.with_sglang.test_worker import ROW_WIDTH, VOCABULARY, Request, Tables, sampling_info

TOPK, STEPS, EAGLE_NODES, NGRAM_NODES, BLOCK = 2, 3, 6, 6, 4
SPECULATIVE = "sglang.srt.speculative"


def hook(monkeypatch, name, stand_in=None):
    """Apply a hook of the table, to SGLang's function or to its stand-in, wherever SGLang holds it."""
    owner, attribute = name.rsplit(".", 1)
    original = pkgutil.resolve_name(name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return table.HOOKS[name].function(stand_in or original, *args, **kwargs)

    monkeypatch.setattr(pkgutil.resolve_name(owner), attribute, wrapped)
    for module in [m for n, m in sys.modules.items() if n.startswith(("sglang.", "sgl_kernel"))]:
        for key, value in list(vars(module).items()):
            if value is original:
                monkeypatch.setattr(module, key, wrapped)


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's modules, so far changed that they run here, with the tracer's hooks."""
    import sgl_kernel
    from sglang.srt import distributed
    from sglang.srt.layers import dp_attention
    from sglang.srt.speculative import (
        dflash_utils,
        dflash_worker_v2,
        eagle_utils,
        eagle_worker_common,
        eagle_worker_v2,
        ngram_worker,
    )

    names = (n for n in table.HOOKS if "init_model_worker" not in n and "TpModelWorker" not in n)
    for name in names:
        hook(monkeypatch, name, vars(twins).get(name.rsplit(".", 1)[1]))
    spec = SimpleNamespace(
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
        speculative_use_rejection_sampling=False,
    )
    for module in (eagle_utils, eagle_worker_v2):
        monkeypatch.setattr(module, "get_spec", lambda: spec)
    monkeypatch.setattr("sglang.srt.runtime_context.get_spec", lambda: spec)
    monkeypatch.setattr(distributed, "get_tp_group", lambda: SimpleNamespace(world_size=1))
    monkeypatch.setattr(dp_attention, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(eagle_utils, "_is_cuda", True)  # which of its branches calls the tree kernel
    build = eagle_utils.sgl_build_tree_kernel_triton
    monkeypatch.setattr(eagle_utils, "sgl_build_tree_kernel_efficient", build, raising=False)
    monkeypatch.setattr(eagle_worker_common, "eagle_prepare_for_verify", prepare_for_verify)
    for module in (eagle_worker_common, ngram_worker):
        monkeypatch.setattr(module, "commit_mamba_states_after_verify", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    sampling = sgl_kernel.tree_speculative_sampling_target_only
    monkeypatch.setattr(dflash_utils, "tree_speculative_sampling_target_only", sampling, raising=False)
    monkeypatch.setattr(dflash_utils, "_DFLASH_SAMPLING_VERIFY_AVAILABLE", True)
    monkeypatch.setattr(dflash_worker_v2, "ForwardBatch", lambda **given: SimpleNamespace(**given))
    return SimpleNamespace(monkeypatch=monkeypatch)


class SamplingInfo(SimpleNamespace):
    def __len__(self):
        return len(self.temperatures)


class Server:
    """A target that is a table, its KV rows, and a scheduler without overlap."""

    def __init__(self, folder, algorithm, path_len):
        self.folder, self.tables = folder, Tables()
        self.rows = torch.arange(8 * ROW_WIDTH, dtype=torch.int32).view(8, ROW_WIDTH) + 1
        self.pool = SimpleNamespace(req_to_token=self.rows)
        self.moved = []
        kv = SimpleNamespace(move_kv_cache=lambda to, of: self.moved.append((to.clone(), of.clone())))
        self.allocator = SimpleNamespace(get_kvcache=lambda: kv, page_size=1)
        self.runner = SimpleNamespace(
            attn_backend=SimpleNamespace(verify_mask=None, max_context_len=ROW_WIDTH),
            req_to_token_pool=self.pool,
            model=SimpleNamespace(
                get_input_embeddings=lambda: lambda ids: torch.nn.functional.one_hot(ids, VOCABULARY).float(),
                lm_head=SimpleNamespace(weight=torch.eye(VOCABULARY)),
            ),
            server_args=None,
        )
        self.target = SimpleNamespace(model_runner=self.runner)
        verify = table.HOOKS["sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"].function
        self.target.forward_batch_generation = functools.partial(verify, self.forward, self.target)
        self.tracer = twins.new_builtin_tracer(folder, algorithm, path_len, VOCABULARY, ROW_WIDTH)

    def forward(self, _worker, batch, forward_batch=None, **_):
        ids = (batch if forward_batch is None else forward_batch).input_ids
        hidden = ids.float().unsqueeze(1)
        output = SimpleNamespace(next_token_logits=self.tables.target[ids].clone(), hidden_states=hidden)
        return SimpleNamespace(
            logits_output=output,
            can_run_cuda_graph=False,
            routed_experts_output=None,
            indexer_topk_output=None,
        )

    def serve(self, worker, reqs, first_input):
        """first_input: the worker's input of the first decoding step, from lengths and first tokens."""
        start.note_steps(worker, self.tracer)
        lens = torch.tensor([len(req.origin_input_ids) for req in reqs])
        for req in reqs:
            req.output_ids.append(int(self.tables.target[req.origin_input_ids[-1]].argmax()))
        spec_info = first_input(lens, torch.tensor([req.output_ids[0] for req in reqs]))
        self.tracer.prefilled(reqs)
        forwards = 0
        while not all(req.finished() for req in reqs):
            forwards += 1
            result = worker.forward_batch_generation(self.batch(reqs, lens, spec_info, forwards))
            stride = result.speculative_num_draft_tokens
            tokens, counts = result.next_token_ids.tolist(), result.accept_lens.tolist()
            ended, before = [req.finished() for req in reqs], [len(req.output_ids) for req in reqs]
            for i, req in enumerate(reqs):
                if not ended[i]:
                    req.output_ids.extend(tokens[i * stride : i * stride + counts[i]])
                    if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                        req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
            self.tracer.settled(reqs, ended, before, result)
            lens, spec_info = result.new_seq_lens.clone().long(), result.next_draft_input
        self.tracer.writer.close(30)
        assert self.tracer.failures == 0
        return {trace.header.request_id: trace for trace in map(load, self.folder.glob("*.ddviz"))}

    def batch(self, reqs, lens, spec_info, forwards):
        absent = ("acc_additive_penalties", "acc_scaling_penalties", "penalizer_orchestrator", "grammar_mask")
        info = SamplingInfo(**vars(sampling_info(reqs)), **dict.fromkeys(absent))
        return SimpleNamespace(
            reqs=reqs,
            seq_lens=lens,
            seq_lens_cpu=lens.clone(),
            seq_lens_sum=int(lens.sum()),
            req_pool_indices=torch.arange(len(reqs)) + 1,
            req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            model_config=SimpleNamespace(vocab_size=VOCABULARY),
            forward_mode=ForwardMode.DECODE,
            is_extend_in_batch=False,
            has_grammar=False,
            return_logprob=False,
            input_ids=None,
            out_cache_loc=None,
            sampling_info=info,
            spec_info=spec_info,
            forward_iter=forwards,
            device="cpu",
        )


def prepare_for_verify(verify_input, req_to_token_pool, batch, _worker):
    """What eagle_prepare_for_verify leaves of it where nothing is planned for an attention backend."""
    width = verify_input.draft_token_num
    batch.input_ids, batch.forward_mode = verify_input.draft_token, ForwardMode.TARGET_VERIFY
    at = batch.seq_lens.unsqueeze(1) + torch.arange(width)
    rows = req_to_token_pool.req_to_token[batch.req_pool_indices]
    batch.out_cache_loc = rows.gather(1, at).flatten().long()
    forward = SimpleNamespace(
        input_ids=batch.input_ids,
        out_cache_loc=batch.out_cache_loc,
        spec_info=verify_input,
        seq_lens=batch.seq_lens,
    )
    return forward, False


def eagle_worker(server, monkeypatch, topk):
    from sglang.srt.speculative import eagle_worker_v2 as module
    from sglang.srt.speculative.eagle_info import EagleDraftInput
    from sglang.srt.speculative.eagle_utils import default_tree_mask_mode

    nodes = EAGLE_NODES if topk > 1 else STEPS + 1
    shared = {
        "topk": topk,
        "speculative_num_steps": STEPS,
        "speculative_num_draft_tokens": nodes,
        "device": "cpu",
        "plan_stream": None,
        "plan_stream_ctx": contextlib.nullcontext(),
        "req_to_token_pool": server.pool,
        "token_to_kv_pool_allocator": server.allocator,
    }

    def best(tokens):
        return torch.softmax(server.tables.draft[tokens], dim=-1).topk(topk, dim=-1)

    def draft_input(tokens):
        probs, ids = best(tokens)
        hidden = tokens.float().unsqueeze(1)
        return EagleDraftInput(topk_p=probs, topk_index=ids, hidden_states=hidden, bonus_tokens=tokens)

    def draft_step(forward):
        logits = server.tables.draft[forward.input_ids.long()]
        hidden = forward.input_ids.float().unsqueeze(1)
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=hidden))

    drafter = object.__new__(module.EagleDraftWorker)
    vars(drafter).update(
        **shared,
        hot_token_id=None,
        index_share_for_mtp_iteration=False,
        seed_dsa_topk_from_draft_extend=False,
        cuda_graph_runner=None,
        tree_mask_mode=default_tree_mask_mode(),
        target_worker=server.target,
        draft_tp_context=lambda _group: contextlib.nullcontext(),
        draft_attn_backend=SimpleNamespace(
            attn_backends=[None] * STEPS, init_forward_metadata=lambda _batch: None
        ),
        draft_runner=SimpleNamespace(
            forward=draft_step,
            canary_manager=None,
            tp_group=None,
            model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=["Table"])),
        ),
    )
    if topk == 1:
        drafter._topk1_parents_prealloc = torch.arange(-1, STEPS - 1).repeat(8, 1)
        drafter._topk1_score_indices_prealloc = torch.arange(STEPS).repeat(8, 1)

    def extend(batch, result):
        bonus = result.next_draft_input.bonus_tokens.long()
        result.next_draft_input.topk_p, result.next_draft_input.topk_index = best(bonus)
        result.next_draft_input.hidden_states = bonus.float().unsqueeze(1)

    drafter._draft_extend_for_decode = extend

    def prepare_for_draft(draft_input, _pool, batch, *_):
        bs = len(batch.seq_lens)
        forward = SimpleNamespace(
            spec_info=draft_input,
            forward_mode=batch.forward_mode,
            batch_size=bs,
            out_cache_loc=torch.zeros(bs * topk * STEPS, dtype=torch.int64),
            positions=batch.seq_lens.repeat_interleave(topk),
            sampling_info=batch.sampling_info,
            mark_forward_metadata_ready=lambda: None,
        )
        return forward, False

    monkeypatch.setattr(module, "prepare_for_draft", prepare_for_draft)
    for name in ("speculative_moe_backend_context", "speculative_moe_a2a_backend_context"):
        monkeypatch.setattr(module, name, contextlib.nullcontext)
    monkeypatch.setattr(module, "spec_stage_span", lambda _name: contextlib.nullcontext())
    monkeypatch.setattr(module, "forward_context", lambda _context: contextlib.nullcontext())
    worker = object.__new__(module.EAGLEWorkerV2)
    vars(worker).update(
        **shared, adaptive_controller=None, _draft_worker=drafter, _target_worker=server.target
    )
    return worker, lambda lens, tokens: draft_input(tokens)


def ngram_worker(server, monkeypatch):
    from sglang.srt.speculative import ngram_worker as module

    class Corpus:
        """Instead of n-grams: two branches that follow the table, filled up as SGLang's corpus does."""

        def batch_get(self, _ids, texts, _lens):
            nodes, mask = [], np.zeros((len(texts), NGRAM_NODES, NGRAM_NODES), np.int64)
            for b, text in enumerate(texts):
                first, second = server.tables.draft[text[-1]].topk(2).indices.tolist()
                third = int(server.tables.draft[first].argmax())
                nodes += [text[-1], first, second, third, 0, 0]
                mask[b] = np.eye(NGRAM_NODES)
                mask[b, :, 0] = 1
                mask[b, 3, 1] = 1
            return np.array(nodes), mask.flatten()

        def synchronize(self): ...
        def batch_put(self, _texts): ...
        def erase_match_state(self, _ids): ...

    def reconstruct(mask, lens, positions, index, next_token, next_sibling, bs, width):
        found = module._derive_tree_links(mask.numpy(), bs, width)  # SGLang's own twin of that kernel
        next_token.copy_(found[0])
        next_sibling.copy_(found[1])
        index.copy_(torch.arange(bs * width).view(bs, width))
        depths = mask.view(bs, width, width).sum(-1) - 1
        positions.copy_((lens.unsqueeze(1) + depths).flatten())

    def slots(*, req_pool_indices, req_to_token, start_offset, draft_token_num, **_):
        at = start_offset.unsqueeze(1) + torch.arange(draft_token_num)
        return req_to_token[req_pool_indices].gather(1, at).flatten().long()

    monkeypatch.setattr(module, "reconstruct_indices_from_tree_mask", reconstruct)
    monkeypatch.setattr(module, "assign_extend_cache_locs_func", slots)
    monkeypatch.setattr(module, "prepare_mamba_track_for_verify", lambda _batch: None)
    server.tables.target[:, 0] -= 30  # the token that trees are filled up with
    worker = object.__new__(module.NGRAMWorker)
    vars(worker).update(
        _target_worker=server.target,
        device="cpu",
        draft_token_num=NGRAM_NODES,
        speculative_num_draft_tokens=NGRAM_NODES,
        max_batch_size=8,
        max_trie_depth=18,
        enable_overlap=False,
        ngram_corpus=Corpus(),
        adaptive_controller=None,
        token_to_kv_pool_allocator=server.allocator,
        _prev_decode_rids=set(),
    )
    worker._init_preallocated_tensors()

    def first_input(lens, tokens):
        accepted = torch.zeros((len(lens), NGRAM_NODES), dtype=torch.int32)
        accepted[:, 0] = tokens
        return module.NgramVerifyInput(
            draft_token_num=NGRAM_NODES,
            new_seq_lens=lens,
            accept_tokens=accepted.flatten(),
            accept_lens=torch.ones(len(lens), dtype=torch.int32),
        )

    return worker, first_input


def dflash_worker(server, monkeypatch):
    from sglang.srt.speculative import dflash_worker_v2 as module
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput
    from sglang.srt.speculative.draft_worker_common import make_draft_input_v2

    def prepared(verify_input, batch, _worker):
        batch.input_ids, batch.spec_info = verify_input.draft_token, verify_input
        forward = SimpleNamespace(
            input_ids=batch.input_ids, out_cache_loc=batch.out_cache_loc, spec_info=verify_input
        )
        return forward, False

    def draft_forward(batch):
        last = batch.input_ids.view(-1, BLOCK)[:, 0]
        hidden = [torch.zeros((len(last), VOCABULARY))]
        for _ in range(BLOCK - 1):
            hidden.append(server.tables.draft[last])
            last = server.tables.draft[last].argmax(-1)
        output = SimpleNamespace(hidden_states=torch.stack(hidden, 1).view(-1, VOCABULARY))
        return SimpleNamespace(can_run_graph=False, logits_output=output)

    monkeypatch.setattr(DFlashVerifyInput, "prepare_for_verify", prepared)
    worker = object.__new__(module.DFlashWorkerV2)
    worker._target_worker = server.target
    vars(worker).update(
        model_runner=server.runner,
        device="cpu",
        ps=SimpleNamespace(tp_rank=0),
        block_size=BLOCK,
        _mask_token_id=1,
        _draft_block_spec_info=None,
        _draft_block_ids_buf=None,
        _block_pos_offsets=torch.arange(BLOCK),
        _use_triton_prepare_block=True,
        _use_triton_accept_bonus=True,
        _warned_sampling_fallback=False,
        _need_mamba_verify_commit=False,
        use_compact_draft_cache=False,
        _draft_sampler=None,
        _accept_bonus_buffer_cap=0,
        _accept_bonus_buffer_slot=0,
        _accept_len_buf=None,
        draft_model_runner=SimpleNamespace(forward=draft_forward),
        _fused_kv_helper=None,
    )
    monkeypatch.setattr(
        module.DFlashWorkerV2,
        "_greedy_sample_from_vocab_parallel_head",
        lambda _self, hidden_states, lm_head: hidden_states.argmax(-1),
    )
    name = f"{SPECULATIVE}.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc"
    hook(monkeypatch, name, lambda _self, **_: None)
    return worker, lambda lens, tokens: make_draft_input_v2(bonus_tokens=tokens, new_seq_lens=lens)


WORKERS = {
    "EAGLE": (eagle_worker, (TOPK,), STEPS + 1),
    "EAGLE chain": (eagle_worker, (1,), STEPS + 1),
    "NGRAM": (ngram_worker, (), NGRAM_NODES),
    "DFLASH": (dflash_worker, (), BLOCK),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", WORKERS)
def test_the_steps_of_sglangs_own_workers_pass_the_doctor(sglang, tmp_path, kind, temperature):
    make, arguments, path_len = WORKERS[kind]
    torch.manual_seed(1)
    server = Server(tmp_path, kind.split()[0], path_len)
    worker, first_input = make(server, sglang.monkeypatch, *arguments)
    reqs = [Request("a", temperature, 12), Request("b", temperature, 20), Request("c", temperature, 9)]
    reqs[1].origin_input_ids, reqs[2].origin_input_ids = [5, 6, 11, 4], [18]
    traces = server.serve(worker, reqs, first_input)
    steps = [step for trace in traces.values() for step in trace.steps]
    assert sum(step.accept.num_accepted for step in steps) > 3
    for req in reqs:
        trace = traces[req.rid]
        assert examine(trace) == []
        assert trace.end.output_ids == req.output_ids_through_stop
    assert {step.accept.kernel for step in steps} == {"sampled" if temperature else "greedy"}
    assert all(step.target is not None and step.commit is not None for step in steps)
    widest = max(step.tree.parents.count(0) for step in steps)
    assert widest == {"EAGLE": TOPK, "EAGLE chain": 1, "NGRAM": 4, "DFLASH": 1}[kind]
    if kind == "EAGLE":
        assert all(step.tree.scores[0] == 1.0 and min(step.tree.scores) > 0 for step in steps)
    else:
        assert all(step.tree.scores is None for step in steps)
    if kind == "DFLASH":
        assert all(step.commit.draft_kv_positions for step in steps)
        assert all((step.retrieve is None) == (not temperature) for step in steps)
    else:
        assert all(step.mask is not None and step.retrieve is not None for step in steps)
    assert bool(server.moved) == (kind in ("EAGLE", "NGRAM"))  # a chain is where it must be already
