"""When the stages of a step began, as the device says it.

In:  calls of `stamp` in the stages themselves, at their begin, and one at the end of the last.
Out: nanoseconds of a clock whose zero means nothing, one a boundary between stages.
Not here: who reads them (tracing/steps.py).

A stamp is a kernel of one thread, captured with its stage: in a graph it costs the host nothing, where a pair
of events costs it ten microseconds a stage.
"""

import time

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


def stamp(stamps: torch.Tensor, boundary: int) -> None:
    """Write the time into stamps [6] int64: i is the begin of stage i, the last the end of the last."""
    if stamps.is_cuda:
        _stamp[(1,)](stamps, boundary, num_warps=1)
    else:  # a worker on the CPU, in tests
        stamps[boundary] = time.perf_counter_ns()


@triton.jit
def _stamp(stamps, boundary: tl.constexpr):
    tl.store(stamps + boundary, globaltimer())
