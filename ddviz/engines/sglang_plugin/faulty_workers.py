"""Workers of which one stage does the wrong thing, on the device and in its CUDA graphs too.

In:  nothing more than a DDTreeWorker has.
Out: WORKERS, by the name of their fault.
Not here: when such a worker is used (faults.py).
"""

from typing import Any

import torch

from ddviz.engines.faults import by_fault
from ddviz.engines.sglang_plugin.step_buffers import StepBuffers
from ddviz.engines.sglang_plugin.worker import DDTreeWorker


class ChainMask(DDTreeWorker):
    """Every node sees all nodes before it, as if the tree were a chain."""

    fault = "chain_mask"

    def _compile(self, step: StepBuffers, mask: torch.Tensor) -> None:
        super()._compile(step, mask)
        width = step.tree.width
        nodes = torch.arange(width, device=mask.device)
        rows = width * ((step.seq_lens + width).cumsum(0) - step.seq_lens - width)  # first cells
        lines = (step.seq_lens + width).view(-1, 1) * nodes + (rows + step.seq_lens).view(-1, 1)
        cells = lines.unsqueeze(2) + nodes
        mask[cells] = (nodes <= nodes.unsqueeze(1)).to(mask.dtype).expand_as(cells)


class PositionByIndex(DDTreeWorker):
    """RoPE position by node index instead of depth."""

    fault = "position_by_index"

    def _compile(self, step: StepBuffers, mask: torch.Tensor) -> None:
        super()._compile(step, mask)
        nodes = torch.arange(step.tree.width, device=mask.device)
        step.tree.positions.copy_(step.seq_lens.unsqueeze(1) + nodes)


class KvNotPacked(DDTreeWorker):
    """Accepted KV stays at its scattered tree slots; the next step reads the front ones."""

    fault = "kv_not_packed"

    def _pack(self, step: StepBuffers) -> None:
        accepted = step.accepted
        slots = step.tree.slots.view(-1)[step.path].view_as(accepted.accept_index)
        path = torch.arange(slots.shape[1], device=slots.device) <= accepted.num_accepted.unsqueeze(1)
        step.moves.copy_((slots * path).unsqueeze(2).expand_as(step.moves))


class FlatOffByOne(DDTreeWorker):
    """Flat ids are turned into node indices with an offset of one, for the KV and the hidden states."""

    fault = "flat_off_by_one"

    def _pack(self, step: StepBuffers) -> None:
        index, width = step.accepted.accept_index, step.tree.width
        node = index % width
        moved = index + ((node > 0) & (node < width - 1)).to(index.dtype)
        index.copy_(torch.where(index >= 0, moved, index))
        step.path.copy_(index.clamp(min=0).view(-1))
        super()._pack(step)


class WrongFeatureLayer(DDTreeWorker):
    """The drafter is fed the outputs of each layer's predecessor."""

    fault = "wrong_feature_layer"

    def init_attention_backends(self) -> None:
        super().init_attention_backends()  # after the target's, which names the layers
        model = self.model_runner.model.model
        model.layers_to_capture = [max(layer - 1, 1) for layer in model.layers_to_capture]


class BiasedCoin(DDTreeWorker):
    """Coins are squared: small ones are too frequent, so early candidates are accepted too often."""

    fault = "biased_coin"

    def _draw_coins(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        coins, final_coins = super()._draw_coins(*given)
        return coins**2, final_coins


class GreedyKernelAtTemperature(DDTreeWorker):
    """The greedy rule decides whatever the temperature."""

    fault = "greedy_kernel_at_temperature"

    def _decides_greedily(self, batch: Any) -> bool:
        return True


WORKERS = by_fault(
    ChainMask,
    PositionByIndex,
    KvNotPacked,
    FlatOffByOne,
    WrongFeatureLayer,
    BiasedCoin,
    GreedyKernelAtTemperature,
)
