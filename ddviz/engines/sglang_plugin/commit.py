"""Stage 5 of 5, draft -> build -> compile -> verify -> COMMIT: keep the accepted path, wherever it came from.

In:  AcceptedBatch of either derivation, the step's slots, the target's KV pool.
Out: accepted nodes' KV packed to the front slots; the emitted tokens, the rows whose hidden states go on.
Not here: the drafter's KV, which the worker appends from those hidden states.

    node   0  1  2  3  4         accepted path 0, 2, 4
    slot   7  3  9  5  8         destination 7, 3, 9: the first three slots of the request
    moves  slot 9 -> 3, slot 8 -> 9, in this order: a slot is read before it is written
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ddviz.engines.sglang_plugin.batch import AcceptedBatch
from ddviz.engines.sglang_plugin.step_buffers import StepBuffers

TILE_BYTES = 1024
_SCALES = ("k_scale_buffer", "index_k_with_scale_buffer")


def settle(step: StepBuffers, offsets: torch.Tensor) -> None:
    """From the accepted paths to what a step emits, and to where its KV will lie.

    offsets  [S] int64, 0 .. S-1
    """
    accepted, path_len = step.accepted, offsets.shape[0]
    torch.add(accepted.num_accepted, 1, out=step.accept_lens)
    torch.add(step.seq_lens, step.accept_lens, out=step.new_seq_lens)
    step.path.copy_(accepted.accept_index.clamp(min=0).view(-1))
    step.emitted.copy_(accepted.predicts[step.path].view_as(step.emitted))
    torch.gather(step.emitted, 1, accepted.num_accepted.long().unsqueeze(1), out=step.bonus.unsqueeze(1))
    step.front_slots.copy_(step.tree.slots[:, :path_len])
    torch.add(step.seq_lens.unsqueeze(1), offsets, out=step.positions)


class KVPacker:
    """Moves accepted rows in every KV buffer of the target, one launch a step."""

    def __init__(self, kv_pool: Any) -> None:
        """kv_pool: an MHATokenToKVPool or MLATokenToKVPool whose slots are rows; ValueError for others."""
        self._buffers = buffers = _row_buffers(kv_pool)  # held, since the kernel knows their addresses alone
        device = buffers[0].device
        row_bytes = [buffer[0].numel() * buffer.element_size() for buffer in buffers]
        self._addresses = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64, device=device)
        self._row_bytes = torch.tensor(row_bytes, dtype=torch.int64, device=device)
        self._tiles = triton.cdiv(max(row_bytes), TILE_BYTES)

    def pack(self, slots: torch.Tensor, accepted: AcceptedBatch, moves: torch.Tensor) -> None:
        """KV of path node i moves from slots[path[i]] to slots[i].

        moves  [bs, S, 2] int64, where the kernel notes source and destination of every path node
        slots  [bs, T] int64, as compiled before the forward: req_to_token is not read again, because a row
               may belong to another request once the target's forward is under way (overlap scheduling)
        """
        bs, width = slots.shape
        grid = (bs, self._addresses.shape[0], self._tiles)
        _pack[grid](
            self._addresses,
            self._row_bytes,
            slots,
            accepted.accept_index,
            accepted.num_accepted,
            moves,
            T=width,
            S=accepted.accept_index.shape[1],
            TILE=TILE_BYTES,
            num_warps=2,
        )


def _row_buffers(kv_pool: Any) -> list[torch.Tensor]:
    """Every buffer whose row i belongs to slot i; ValueError for a pool that keeps a slot otherwise."""
    name = type(kv_pool).__name__
    if hasattr(kv_pool, "kv_buffer"):  # MLA: latent and rope in one row
        buffers = list(kv_pool.kv_buffer)
    elif hasattr(kv_pool, "k_buffer"):
        buffers = [*kv_pool.k_buffer, *kv_pool.v_buffer]
    else:
        raise ValueError(f"DDTREE cannot move the KV of a {name}")
    if any(getattr(kv_pool, scales, None) is not None for scales in _SCALES):
        raise ValueError(f"DDTREE does not move the scales that a {name} keeps: use an unscaled KV cache")
    if getattr(kv_pool, "use_hnd", False) or any(not b.is_contiguous() for b in buffers):
        raise ValueError(f"DDTREE needs one contiguous row a slot, which a {name} has not")
    return buffers


@triton.jit
def _pack(
    addresses,
    row_bytes,
    slots,
    accept_index,
    num_accepted,
    moves_out,
    T: tl.constexpr,  # noqa: N803
    S: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    buffer = tl.load(addresses + tl.program_id(1)).to(tl.pointer_type(tl.uint8))
    stride = tl.load(row_bytes + tl.program_id(1))
    byte = tl.program_id(2) * TILE + tl.arange(0, TILE)
    # NOTE: ascending, and one thread moves the same bytes of every row, so that what it reads at step i was
    # not written before: the destinations of steps 1 .. i-1 are slots 1 .. i-1, its source is path[i] >= i.
    for i in range(tl.load(num_accepted + row) + 1):
        node = tl.load(accept_index + row * S + i) - row * T
        source = tl.load(slots + row * T + node)
        destination = tl.load(slots + row * T + i)
        if tl.program_id(1) + tl.program_id(2) == 0:
            tl.store(moves_out + (row * S + i) * 2, source)
            tl.store(moves_out + (row * S + i) * 2 + 1, destination)
        if source != destination:
            held = tl.load(buffer + source * stride + byte, mask=byte < stride)
            tl.store(buffer + destination * stride + byte, held, mask=byte < stride)
