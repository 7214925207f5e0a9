"""What EAGLE has beside the tree kernels: scores of its draft, and KV rows that it moves, as NGRAM does.

In:  EAGLE's lists of scores and the indices of the nodes that it chose; the slots of a KV move.
Out: the step under way learns of them.
Not here: the tree itself, which the kernels get (kernels.py).

With CUDA graphs the draft runs inside one, and its scores are no output of it. So while a graph is captured
the chosen nodes' scores are gathered once more, into a tensor that is kept with the graph: every replay fills
it. A chain (topk 1) has no scores: EAGLE computes none.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from ddviz.engines.sglang_plugin.tracing.builtin.step import UnderWay

_Key = tuple[int, int]  # of a captured graph: its runner, its batch size


class _Captured:
    """Scores that the replay of a draft graph leaves."""

    now: _Key | None = None  # the graph that is captured
    scores: ClassVar[dict[_Key, torch.Tensor]] = {}


def note_scores(original: Callable[..., Any], score_list: Any, *args: Any, **kwargs: Any) -> Any:
    """`organize_draft_results`: which of the drafted nodes make the tree."""
    answer = original(score_list, *args, **kwargs)
    if UnderWay.step is None and _Captured.now is None:
        return answer
    chosen = torch.cat(score_list, dim=1).flatten(1).gather(1, answer[1])
    if _Captured.now is not None:
        if _is_capturing():
            _Captured.scores[_Captured.now] = chosen
    elif UnderWay.step is not None:
        UnderWay.step.scored(chosen)
    return answer


def note_capture(original: Callable[..., Any], runner: Any, size: int, *args: Any, **kwargs: Any) -> Any:
    """`EAGLEDraftCudaGraphRunner.capture_one_shape`."""
    _Captured.now = (id(runner), size)
    try:
        return original(runner, size, *args, **kwargs)
    finally:
        _Captured.now = None


def note_replay(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """`EAGLEDraftCudaGraphRunner.execute`."""
    answer = original(runner, *args, **kwargs)
    scores = _Captured.scores.get((id(runner), getattr(runner, "bs", -1)))
    if UnderWay.step is not None and scores is not None:
        UnderWay.step.scored(scores)
    return answer


def note_move(
    original: Callable[..., Any],
    batch: Any,
    accept_index: Any,
    num_correct_drafts: Any,
    token_to_kv_pool_allocator: Any,
) -> Any:
    """`move_accept_tokens_to_target_kvcache`: it makes the slots, which are seen where the pool gets them."""
    if UnderWay.step is not None:
        token_to_kv_pool_allocator = _NotingAllocator(token_to_kv_pool_allocator)
    return original(batch, accept_index, num_correct_drafts, token_to_kv_pool_allocator)


class _NotingAllocator:
    """An allocator whose KV cache tells the step what it moves; all else is the allocator's."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def get_kvcache(self) -> Any:
        return _NotingCache(self._allocator.get_kvcache())


class _NotingCache:
    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def move_kv_cache(self, destinations: torch.Tensor, sources: torch.Tensor) -> Any:
        if UnderWay.step is not None:
            UnderWay.step.moved(destinations, sources)
        return self._cache.move_kv_cache(destinations, sources)


def _is_capturing() -> bool:
    """Warm-up runs of a capture are no part of the graph."""
    return not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing()
