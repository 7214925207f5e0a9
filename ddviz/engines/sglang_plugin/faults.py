"""Defects that the server really commits when DDVIZ_FAULT names one and DDVIZ_DEBUG is 1: to try checks on.

In:  the name of a fault, one of `ddviz.engines.base.FAULTS`.
Out: a DDTreeWorker whose one stage does the wrong thing, in its CUDA graphs too. The trace then holds what it
     did, and its header the fault's name.
Not here: the same defects of the embedded engine (torch_engine/faults.py), finding them (check/).
"""

import os
from typing import Any

from ddviz.engines.base import FAULTS
from ddviz.errors import RefusedError

FAULT, DEBUG = "DDVIZ_FAULT", "DDVIZ_DEBUG"  # environment


def chosen() -> str | None:
    """The fault to commit, None = none. RefusedError for an unknown name, and where nobody said DEBUG."""
    name = os.environ.get(FAULT) or None
    if name is None:
        return None
    if name not in FAULTS:
        raise RefusedError(f"{FAULT} is {name!r}, must be one of: {', '.join(FAULTS)}; unset it to run sound")
    if os.environ.get(DEBUG) != "1":
        raise RefusedError(f"{FAULT}={name} makes this server do wrong: set {DEBUG}=1 too, or unset it")
    return name


def told() -> dict[str, str]:
    """What a trace's header says of it."""
    name = chosen()
    return {} if name is None else {"fault": name}


def worker_with(name: str) -> type:
    """The worker that commits the fault."""
    import torch

    from ddviz.engines.sglang_plugin.step_buffers import StepBuffers
    from ddviz.engines.sglang_plugin.worker import DDTreeWorker

    class ChainMask(DDTreeWorker):
        """Every node sees all nodes before it, as if the tree were a chain."""

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

        def _compile(self, step: StepBuffers, mask: torch.Tensor) -> None:
            super()._compile(step, mask)
            nodes = torch.arange(step.tree.width, device=mask.device)
            step.tree.positions.copy_(step.seq_lens.unsqueeze(1) + nodes)

    class KvNotPacked(DDTreeWorker):
        """Accepted KV stays at its scattered tree slots; the next step reads the front ones."""

        def _pack(self, step: StepBuffers) -> None:
            accepted = step.accepted
            slots = step.tree.slots.view(-1)[step.path].view_as(accepted.accept_index)
            path = torch.arange(slots.shape[1], device=slots.device) <= accepted.num_accepted.unsqueeze(1)
            step.moves.copy_((slots * path).unsqueeze(2).expand_as(step.moves))

    class FlatOffByOne(DDTreeWorker):
        """Flat ids are turned into node indices with an offset of one, for the KV and the hidden states."""

        def _pack(self, step: StepBuffers) -> None:
            index, width = step.accepted.accept_index, step.tree.width
            node = index % width
            moved = index + ((node > 0) & (node < width - 1)).to(index.dtype)
            index.copy_(torch.where(index >= 0, moved, index))
            step.path.copy_(index.clamp(min=0).view(-1))
            super()._pack(step)

    class WrongFeatureLayer(DDTreeWorker):
        """The drafter is fed the outputs of each layer's predecessor."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            model = self.model_runner.model.model
            model.layers_to_capture = [max(layer - 1, 1) for layer in model.layers_to_capture]

    class BiasedCoin(DDTreeWorker):
        """Coins are squared: small ones are too frequent, so early candidates are accepted too often."""

        def _draw_coins(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            coins, final_coins = super()._draw_coins(*given)
            return coins**2, final_coins

    class GreedyKernelAtTemperature(DDTreeWorker):
        """The greedy rule decides whatever the temperature."""

        def _decides_greedily(self, batch: Any) -> bool:
            return True

    workers = (
        *(ChainMask, PositionByIndex, KvNotPacked, FlatOffByOne, WrongFeatureLayer, BiasedCoin),
        GreedyKernelAtTemperature,
    )
    assert len(workers) == len(FAULTS)
    return next(worker for worker in workers if _name_of(worker) == name)


def _name_of(worker: type) -> str:
    """ChainMask -> chain_mask"""
    return "".join("_" + c.lower() if c.isupper() else c for c in worker.__name__).lstrip("_")
