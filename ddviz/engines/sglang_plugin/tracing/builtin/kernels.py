"""The two tree kernels of sglang-kernel: every tree that is verified goes through one of them.

In:  their arguments, by position or by name, once they are written.
Out: the step under way learns of the path. Between steps nothing is read.
Not here: what is read of them (step.py).
"""

import inspect
from collections.abc import Callable
from typing import Any

from ddviz.engines.sglang_plugin.tracing.builtin.step import UnderWay


def note_accepted(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`verify_tree_greedy` or `tree_speculative_sampling_target_only`."""
    answer = original(*args, **kwargs)
    if UnderWay.step is not None:
        with UnderWay.step.tracer.guarded():
            UnderWay.step.accepted(_by_name(original, args, kwargs))
    return answer


def _by_name(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; the kernels write `retrive`, and may learn to spell."""
    given = inspect.signature(kernel).bind(*args, **kwargs).arguments
    return {name.replace("retrive_", "retrieve_"): value for name, value in given.items()}
