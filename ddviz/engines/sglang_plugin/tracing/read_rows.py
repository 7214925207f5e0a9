"""What a trace keeps of a row of logits or probabilities, in one pass over the row.

In:  values [n, V] on the device.
Out: per row the m largest with their places, logsumexp, entropy, how many values are not finite.
Not here: which rows are traced, what the numbers are called in a trace (reading.py).

The same as torch.topk, logsumexp and so on, which pass over the row a dozen times and copy it twice: at
batch 16 with 65 nodes that is a seventh of a step.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ddviz.engines.sglang_plugin.tree_kernels import high_bits, value_of

BLOCK = 4096
# The key of a value: 32 bits of value, order-preserving, then 32 of its place, complemented: of equal values
# the first is the greatest, as torch.argmax has it.
_NONE = tl.constexpr(-(1 << 63))


class RowFacts(NamedTuple):
    top_ids: torch.Tensor  # [n, m] int32, values falling
    top_values: torch.Tensor  # [n, m] float32
    logsumexp: torch.Tensor  # [n] float32, of the finite values
    entropy: torch.Tensor  # [n] float32, nats, of softmax(values)
    nonfinite: torch.Tensor  # [n] int32

    @classmethod
    def empty(cls, n: int, m: int, device: torch.device | str) -> "RowFacts":
        def one(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(one(n, m, dtype=torch.int32), one(n, m), one(n), one(n), one(n, dtype=torch.int32))

    def view(self, *shape: int) -> "RowFacts":
        """With n seen as this shape."""
        return RowFacts(*(values.view(*shape, *values.shape[1:]) for values in self))

    def first(self, n: int) -> "RowFacts":
        return RowFacts(*(values[:n] for values in self))


def read_rows(values: torch.Tensor, out: RowFacts, block: int = BLOCK) -> None:
    """Fill `out` from values [n, V], any float type; V at least m."""
    n, vocabulary = values.shape
    assert values.stride(1) == 1 and vocabulary >= out.top_ids.shape[1]
    _read_rows[(n,)](
        values,
        values.stride(0),
        vocabulary,
        out.top_ids,
        out.top_values,
        out.logsumexp,
        out.entropy,
        out.nonfinite,
        BLOCK=block,
        CHUNKS=triton.next_power_of_2(triton.cdiv(vocabulary, block)),
        TOP=out.top_ids.shape[1],
        num_warps=8,
    )


@triton.jit
def _read_rows(
    values,
    stride,
    vocabulary,
    top_ids_out,
    top_values_out,
    logsumexp_out,
    entropy_out,
    nonfinite_out,
    BLOCK: tl.constexpr,  # noqa: N803 - Triton's constants are capitals
    CHUNKS: tl.constexpr,  # noqa: N803
    TOP: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    first = values + row * stride
    lane = tl.arange(0, BLOCK)
    chunks = tl.arange(0, CHUNKS)

    largest = tl.full((CHUNKS,), _NONE, tl.int64)  # key of each chunk's largest value not taken yet
    high = -float("inf")
    total, weighted = 0.0, 0.0  # sums of exp(x - high), and of x * exp(x - high)
    nonfinite = 0
    for chunk in range(0, tl.cdiv(vocabulary, BLOCK)):
        at = chunk * BLOCK + lane
        inside = at < vocabulary
        value = tl.load(first + at, mask=inside, other=0.0).to(tl.float32)
        finite = inside & (tl.abs(value) < float("inf"))  # NaN compares as false
        nonfinite += tl.sum((inside & (finite == 0)).to(tl.int32), axis=0)
        kept = tl.where(finite, value, -float("inf"))
        new_high = tl.maximum(high, tl.max(kept, axis=0))
        base = tl.where(new_high == -float("inf"), 0.0, new_high)
        weight = tl.exp(kept - base)
        shrink = tl.exp(high - base)
        total = total * shrink + tl.sum(weight, axis=0)
        weighted = weighted * shrink + tl.sum(tl.where(finite, value * weight, 0.0), axis=0)
        high = new_high
        key = tl.max(tl.where(finite, _key(value, at), _NONE), axis=0)
        largest = tl.where(chunks == chunk, key, largest)
    logsumexp = high + tl.log(total)
    tl.store(logsumexp_out + row, logsumexp)
    tl.store(entropy_out + row, logsumexp - weighted / total)
    tl.store(nonfinite_out + row, nonfinite)

    for place in range(TOP):
        key = tl.max(largest, axis=0)
        found = (0x7FFFFFFF - (key & 0x7FFFFFFF)).to(tl.int32)
        found = tl.where(key == _NONE, 0, found)
        tl.store(top_ids_out + row * TOP + place, found)
        tl.store(top_values_out + row * TOP + place, tl.where(key == _NONE, -float("inf"), value_of(key)))
        chunk = found // BLOCK
        at = chunk * BLOCK + lane
        value = tl.load(first + at, mask=at < vocabulary, other=0.0).to(tl.float32)
        finite = (at < vocabulary) & (tl.abs(value) < float("inf"))
        own = tl.where(finite, _key(value, at), _NONE)
        left = tl.max(tl.where(own < key, own, _NONE), axis=0)
        largest = tl.where(chunks == chunk, left, largest)


@triton.jit
def _key(value, at):
    return high_bits(value) | (0x7FFFFFFF - at).to(tl.int64)
