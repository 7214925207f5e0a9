"""What SGLang asks a speculative algorithm, answered for DDTREE.

To SGLang it belongs to the DFLASH family: it drafts with DFLASH's drafter, captures the same hidden states
and prepares decoding in the same way. What differs is asked of the worker and of the hooks.
"""

from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from ddviz.engines.sglang_plugin.flags import resolve_server_args

NAME = "DDTREE"


class DDTreeAlgorithm(CustomSpecAlgo):
    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """Rows a request: B in the drafter, T in the target."""
        if not is_draft_worker:
            return num_draft_tokens
        from sglang.srt.runtime_context import get_spec

        return int(get_spec().speculative_dflash_block_size)

    def handle_server_args(self, server_args: Any) -> None:
        server_args.speculative_algorithm = NAME  # the user may have written it in lower case
        resolve_server_args(server_args)

    # The scheduler calls the following on every algorithm, and 0.5.17's base class for plugins lacks them.

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)


def worker_class(server_args: Any) -> type:
    """The worker, imported only in the scheduler's process: it loads CUDA kernels."""
    from ddviz.engines.sglang_plugin import faults
    from ddviz.engines.sglang_plugin.worker import DDTreeWorker

    if (fault := faults.chosen()) is None:
        return DDTreeWorker
    from ddviz.engines.sglang_plugin.faulty_workers import WORKERS

    return WORKERS[fault]
