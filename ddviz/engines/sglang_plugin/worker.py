"""One decoding step of DDTREE in SGLang: draft, build, compile, verify, commit.

In:  a ScheduleBatch in decode; everything else (prefill, pools, the draft's CUDA graph, writing the drafter's
     KV) is DFLASH's and inherited.
Out: GenerationBatchResult, B tokens a request of which accept_lens count.
Not here: the stages' arithmetic, one file each.

    B  block size: what the drafter drafts, and the longest accepted path, root included
    T  nodes that the target verifies a request, root included; trees that are smaller are padded

No host sync anywhere: with overlap scheduling the CPU prepares the next step while this one runs. Our own
stages work on StepBuffers, as CUDA graphs where SGLang has its own: launching them costs more than the work.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2, _prepare_dflash_draft_block_unchecked
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.common import is_pin_memory_available

from ddviz.engines.base import RECORDED_CANDIDATES
from ddviz.engines.sglang_plugin import gate, hooks
from ddviz.engines.sglang_plugin.acceptance import accept_greedy, accept_sampled, draw_coins
from ddviz.engines.sglang_plugin.adjustments import adjust_logits, grammar_tree_of, may_adjust
from ddviz.engines.sglang_plugin.commit import KVPacker, settle
from ddviz.engines.sglang_plugin.draft_head import DraftHead
from ddviz.engines.sglang_plugin.penalties import Penalties
from ddviz.engines.sglang_plugin.requests import tree_limits
from ddviz.engines.sglang_plugin.self_check import check_graph_sees_the_tree
from ddviz.engines.sglang_plugin.stamps import stamp
from ddviz.engines.sglang_plugin.step_buffers import StageGraphs, StepBuffers
from ddviz.engines.sglang_plugin.tracing.start import start as start_tracer
from ddviz.engines.sglang_plugin.tracing.traced_step import NoStep
from ddviz.engines.sglang_plugin.tracing.tracer import NoTracer, trace_folder
from ddviz.engines.sglang_plugin.tree_kernels import build_trees, compile_trees
from ddviz.engines.sglang_plugin.verify_input import DDTreeVerifyInput

MOST_CAPTURED = 32  # requests; in larger batches the device is the slower one


class DDTreeWorker(DFlashWorkerV2):
    """DFLASH's worker with a tree where it has a chain.

    NOTE: DFlashWorkerV2 looks up what it lacks in the target's worker, so a misspelt attribute does not fail:
    every attribute of this class is set in __init__ or alloc_memory_pool.
    """

    def __init__(self, server_args: Any, gpu_id: int, ps: Any, nccl_port: int, target_worker: Any) -> None:
        self.tree_width = int(server_args.speculative_num_draft_tokens)
        self.budget = int(server_args.speculative_ddtree_budget)
        self.topk_cap = int(server_args.speculative_ddtree_topk_cap) or self.budget
        hooks.assert_applied()
        # These arguments are this worker's own copy. The drafter must see its block, B wide; both attention
        # backends and graph runners read T from the published ones.
        server_args.override("ddviz", speculative_num_draft_tokens=server_args.speculative_dflash_block_size)
        super().__init__(server_args, gpu_id, ps, nccl_port, target_worker)
        hooks.keep_dtype_of_embeddings(self.draft_model_runner)
        lm_head = getattr(target_worker.model_runner.model, "lm_head", None)
        self.candidates = self.topk_cap if trace_folder() is None else max(self.topk_cap, RECORDED_CANDIDATES)
        self.head = DraftHead(lm_head, self.block_size, k=self.candidates, tp_group=get_tp_group())
        self._tracer = NoTracer()
        self._timed = trace_folder() is not None
        self._packer: KVPacker | None = None
        self._penalties: Penalties | None = None
        self._whole_mask_rows = get_exec().deterministic.enable_deterministic_inference
        self._offsets = torch.arange(self.block_size, device=self.device)
        self._steps: dict[int, StepBuffers] = {}  # by batch size, all over the memory of the largest
        self._limits: list[tuple[int, int]] = []  # what the buffers hold
        self._graphs = StageGraphs()
        self._path_hidden: torch.Tensor | None = None  # [n * S, H], what the graph of `_append` reads
        self.captured_steps: list[StepBuffers] = []  # those with graphs
        self._held: list[Any] = []  # memory that graphs read, kept where its owner lets go of it

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        super().alloc_memory_pool(*args, **kwargs)
        self._packer = KVPacker(self.model_runner.token_to_kv_pool)
        pool_rows = self.model_runner.req_to_token_pool.req_to_token.shape[0]
        self._penalties = Penalties(pool_rows, self.model_runner.model_config.vocab_size, self.device)
        self._reserve(pool_rows)

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        check_graph_sees_the_tree(self)
        mask = self.model_runner.attn_backend.verify_mask
        if self.model_runner.decode_cuda_graph_runner and self._draft_sampler and mask:
            with torch.inference_mode():
                self._capture(min(MOST_CAPTURED, mask.max_bs), mask.buffer)
        self._tracer = hooks.tracer = start_tracer(self)

    def _maybe_build_draft_sampler(self) -> DraftHead:
        """Called only where graphs are captured: what it returns becomes the tail of the draft's graph."""
        return self.head

    def _reserve(self, most: int) -> None:
        """Memory of steps of up to `most` requests."""
        self._steps = {most: StepBuffers.empty(most, self.tree_width, self.block_size, self.device)}
        self.head.reserve(most)
        self._ensure_draft_block_buffers(most)

    def _capture(self, most: int, mask: torch.Tensor) -> None:
        """Graphs of our stages for every batch of up to `most` requests.

        The buffers are zero, and slot 0 is SGLang's for what nobody reads: nothing is written that matters.
        """
        width = self.draft_model.fc.in_features
        dtype = self.model_runner.dtype
        self._path_hidden = torch.zeros((most * self.block_size, width), dtype=dtype, device=self.device)
        for bs in range(most, 0, -1):  # the largest first: workspaces grow no more
            step = self._buffers(bs)
            self._graphs.capture(self._prepare, step)
            self._graphs.capture(self._build, step)
            self._graphs.capture(self._compile, step, mask)
            step.tree.slots.zero_()
            self._graphs.capture(self._follow, step)
            self._graphs.capture(self._settle, step)
            self._graphs.capture(self._append, step, self._path_hidden[: bs * self.block_size])
            self.captured_steps.append(step)
        if helper := self._fused_kv_helper:  # the prefill of a long prompt makes it larger ones
            self._held = [helper._proj_workspace, helper._k_workspace, helper._v_workspace]

    def _buffers(self, bs: int) -> StepBuffers:
        if bs not in self._steps:
            self._steps[bs] = self.largest_step.first(bs)
        return self._steps[bs]

    @property
    def largest_step(self) -> StepBuffers:
        return self._steps[max(self._steps)]

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Callable[[torch.Tensor], None] | None = None,
        grammar_barrier: Callable[[], None] | None = None,
    ) -> GenerationBatchResult:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            result = super().forward_batch_generation(batch, on_publish, grammar_barrier)
            if batch.forward_mode.is_extend():
                self._penalties.prefilled(batch.reqs, batch.req_pool_indices, result.next_token_ids)
            return result
        gate.pass_through()
        with torch.inference_mode():
            return self._step(batch, on_publish, grammar_barrier)

    def _step(
        self,
        batch: ScheduleBatch,
        on_publish: Callable[[torch.Tensor], None] | None,
        grammar_barrier: Callable[[], None] | None,
    ) -> GenerationBatchResult:
        batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())
        trace = self._tracer.step(batch)
        step = self._load(batch)

        self._draft(batch, step)
        self._graphs.run(self._build, step)
        mask = self.mask_buffer(step.bs, self._host_bound(batch, self.tree_width)[1])
        self._graphs.run(self._compile, step, mask)
        logits_output, forward_batch, ran_graph = self._verify(batch, step, mask, grammar_barrier, trace)
        self._accept(batch, step, logits_output.next_token_logits, trace)
        new_seq_lens = self._commit(batch, step, logits_output.hidden_states, on_publish)
        logits_output.hidden_states = None  # else the scheduler copies it to the host
        trace.noted(step, mask)
        result = GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=step.emitted.flatten().clone(),
            accept_lens=step.accept_lens.clone(),
            can_run_cuda_graph=ran_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=step.bonus.clone(), new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=self.block_size,
            new_seq_lens=new_seq_lens,
            extra_keep_alive_refs=[forward_batch, mask],
        )
        trace.launched(result, ran_graph)
        return result

    def _load(self, batch: ScheduleBatch) -> StepBuffers:
        """The buffers of this batch, with what it says."""
        step = self._buffers(len(batch.reqs))
        step.roots.copy_(batch.spec_info.bonus_tokens.view(-1))
        step.seq_lens.copy_(batch.seq_lens)
        step.pool_rows.copy_(batch.req_pool_indices)
        limits = [
            tree_limits(req.sampling_params.custom_params, self.budget, self.topk_cap) for req in batch.reqs
        ]
        if self._limits != limits:
            both = torch.tensor(limits, dtype=torch.int32).T.contiguous()
            both = both.pin_memory() if is_pin_memory_available(self.device) else both
            step.budgets.copy_(both[0], non_blocking=True)
            step.caps.copy_(both[1], non_blocking=True)
            self._limits = limits
        return step

    # 1. draft

    def _draft(self, batch: ScheduleBatch, step: StepBuffers) -> None:
        """One forward of the drafter over [root, mask x (B-1)]; the head holds its lists."""
        self._graphs.run(self._prepare, step)
        block_ids, positions, slots = self._draft_block(step.bs)
        embeddings = self.target_worker.model_runner.model.get_input_embeddings()(block_ids)
        host_lens, host_sum = self._host_bound(batch, self.block_size)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=step.bs,
            input_ids=block_ids.view(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=slots.view(-1),
            seq_lens_sum=host_sum,
            seq_lens_cpu=host_lens,
            positions=positions.view(-1),
            input_embeds=embeddings.view(-1, embeddings.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        out = self.draft_model_runner.forward(forward_batch)
        if not out.can_run_graph:  # else the graph's tail was the head
            self.head(out.logits_output.hidden_states)

    def _prepare(self, step: StepBuffers) -> None:
        self._stamp(step, 0)
        block_ids, positions, slots = self._draft_block(step.bs)
        _prepare_dflash_draft_block_unchecked(
            bonus_tokens=step.roots,
            prefix_lens=step.seq_lens,
            req_pool_indices=step.pool_rows,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            block_ids_out=block_ids,
            positions_out=positions,
            cache_loc_out=slots,
            mask_token_id=int(self._mask_token_id),
        )

    def _draft_block(self, bs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids, positions and slots [bs, B] that the drafter is given."""
        return (
            self._draft_block_ids_buf[:bs],
            self._draft_block_positions_buf[:bs],
            self._draft_verify_out_cache_loc_buf[:bs],
        )

    # 2. build

    def _build(self, step: StepBuffers) -> None:
        self._stamp(step, 1)
        build_trees(step.tree, *self.head.lists(step.bs), step.roots, step.budgets, step.caps)

    # 3. compile

    def _compile(self, step: StepBuffers, mask: torch.Tensor) -> None:
        self._stamp(step, 2)
        compile_trees(
            step.tree,
            step.seq_lens,
            step.pool_rows,
            self.model_runner.req_to_token_pool.req_to_token,
            mask,
            whole_rows=self._whole_mask_rows,
        )
        self._stamp(step, 3)

    def mask_buffer(self, bs: int, tokens: int) -> torch.Tensor:
        """Where a mask goes: the attention backend's own buffer where it has one, else new.

        tokens  at least the sum over the requests of committed length + T
        """
        owned = self.model_runner.attn_backend.verify_mask
        if owned is not None and owned.fits(bs):
            return owned.buffer
        return torch.empty(self.tree_width * tokens, dtype=torch.uint8, device=self.device)

    # 4. verify

    def _verify(
        self,
        batch: ScheduleBatch,
        step: StepBuffers,
        mask: torch.Tensor,
        grammar_barrier: Callable[[], None] | None,
        trace: NoStep,
    ) -> tuple[Any, ForwardBatch, bool]:
        """One forward of the target over all nodes, then everything that changes its logits."""
        tree = step.tree
        grammar_tree = grammar_tree_of(batch, tree)  # before the forward, so that it is copied beside it
        forward_batch = self._forward_batch(batch, DDTreeVerifyInput.of(tree, mask), tree.slots)
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )
        logits = out.logits_output.next_token_logits
        trace.raw(step, logits, may_change=may_adjust(batch))
        changed = adjust_logits(
            logits, batch, tree, self._penalties, self.block_size, grammar_tree, grammar_barrier
        )
        if changed and self._decides_greedily(batch):  # a sampled step tells what it used itself
            trace.adjusted(logits, tree)
        return out.logits_output, forward_batch, out.can_run_cuda_graph

    def _forward_batch(
        self, batch: ScheduleBatch, verify_input: DDTreeVerifyInput, slots: torch.Tensor
    ) -> ForwardBatch:
        batch.out_cache_loc = slots.view(-1)
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = self._host_bound(batch, self.tree_width)
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        return forward_batch

    def _host_bound(self, batch: ScheduleBatch, width: int) -> tuple[torch.Tensor, int]:
        """Upper bounds of the lengths, known without asking the device, and their sum."""
        if batch.seq_lens_cpu is not None:
            bound = batch.seq_lens_cpu + width
            return bound, int(bound.sum())
        return batch.spec_info.reserved_seq_lens_cpu, int(batch.spec_info.reserved_seq_lens_sum)

    def _accept(self, batch: ScheduleBatch, step: StepBuffers, logits: torch.Tensor, trace: NoStep) -> None:
        if self._decides_greedily(batch):
            torch.argmax(logits.view(step.bs, self.tree_width, -1), dim=-1, out=step.best)
            self._graphs.run(self._follow, step)
            return
        spec = get_spec()
        accept_sampled(
            step.accepted,
            step.tree,
            logits,
            batch.sampling_info,
            *self._draw_coins(batch.sampling_info, batch.seq_lens),
            spec.speculative_accept_threshold_single,
            spec.speculative_accept_threshold_acc,
            trace,
        )
        tp_group = get_tp_group()
        if tp_group.world_size > 1:  # ranks may differ in the last bit of a probability, and in their coins
            for part in step.accepted:
                tp_group.broadcast(part, src=0)

    def _decides_greedily(self, batch: ScheduleBatch) -> bool:
        return bool(batch.sampling_info.is_all_greedy)

    def _draw_coins(self, info: SamplingBatchInfo, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return draw_coins(info, lens, self.tree_width, lens.device)

    def _follow(self, step: StepBuffers) -> None:
        accept_greedy(step.accepted, step.tree, step.best)

    # 5. commit

    def _commit(
        self,
        batch: ScheduleBatch,
        step: StepBuffers,
        hidden_states: torch.Tensor,
        on_publish: Callable[[torch.Tensor], None] | None,
    ) -> torch.Tensor:
        """The accepted paths join both models' KV and the counts; the new lengths [bs], told at once."""
        self._graphs.run(self._settle, step)
        new_seq_lens = step.new_seq_lens.to(batch.seq_lens.dtype, copy=True)
        if on_publish is not None:
            on_publish(new_seq_lens)
        self._follow_in_draft(step, hidden_states)
        self._penalties.committed(batch.reqs, batch.req_pool_indices, step.emitted, step.accept_lens)
        return new_seq_lens

    def _settle(self, step: StepBuffers) -> None:
        """What the step emits; the target's KV packed."""
        self._stamp(step, 4)
        settle(step, self._offsets)
        self._pack(step)

    def _pack(self, step: StepBuffers) -> None:
        step.moves.zero_()
        self._packer.pack(step.tree.slots, step.accepted, step.moves)

    def _follow_in_draft(self, step: StepBuffers, hidden_states: torch.Tensor) -> None:
        """Append the accepted nodes to the drafter's KV, from the target's hidden states [bs*T, H]."""
        rows = step.path.shape[0]
        captured = self._path_hidden is not None and rows <= self._path_hidden.shape[0]
        out = self._path_hidden[:rows] if captured else None
        hidden = torch.index_select(hidden_states, 0, step.path, out=out)
        self._graphs.run(self._append, step, hidden)

    def _append(self, step: StepBuffers, hidden: torch.Tensor) -> None:
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden,
            cache_loc=step.front_slots.view(-1),
            cache_loc_2d=step.front_slots,
            positions=step.positions.view(-1),
            commit_lens=step.accept_lens,
        )
        self._stamp(step, 5)

    def _stamp(self, step: StepBuffers, boundary: int) -> None:
        """The time at the begin of stage `boundary`, where somebody may read it."""
        if self._timed:
            stamp(step.stamps, boundary)
