"""Defects that the embedded engine really commits when DDVIZ_FAULT names one, to try the checks on.

In:  the name of a fault, one of `ddviz.engines.faults.FAULTS`.
Out: a TorchEngine whose one method does the wrong thing. The trace then holds what it did.
Not here: finding them (check/).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ddviz.engines.faults import asked_fault, by_fault
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.run import Run
from ddviz.tree import AcceptedPath, DraftTree, TreeAcceptance, accepted_paths


class ChainMask(TorchEngine):
    """Every node sees all nodes before it, as if the tree were a chain.

    A CUDA graph captured without mask does that.
    """

    fault = "chain_mask"

    def mask(self, tree: DraftTree) -> NDArray[np.bool_]:
        return np.tri(len(tree), dtype=np.bool_)


class PositionByIndex(TorchEngine):
    """RoPE position by node index instead of depth."""

    fault = "position_by_index"

    def positions(self, run: Run, tree: DraftTree) -> NDArray[np.int64]:
        return run.cache.length + np.arange(len(tree), dtype=np.int64)


class KvNotPacked(TorchEngine):
    """Accepted KV stays at its scattered tree slots; the next step reads the front ones."""

    fault = "kv_not_packed"

    def pack(self, run: Run, slots: torch.Tensor, path: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        run.cache.advance(len(path))
        return slots[path], slots[path]


class FlatOffByOne(TorchEngine):
    """Flat ids are turned into node indices with an offset of one."""

    fault = "flat_off_by_one"

    def local_path(self, acceptance: TreeAcceptance, width: int) -> AcceptedPath:
        path, emitted = accepted_paths(acceptance, width)[0]
        return AcceptedPath(np.minimum(path + (path > 0), width - 1), emitted)


class WrongFeatureLayer(TorchEngine):
    """The drafter is fed the outputs of each layer's predecessor."""

    fault = "wrong_feature_layer"

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if self.drafter is not None:
            self.shifted = [max(layer - 1, 0) for layer in self.drafter.target_layer_ids]
            self.target.capture(self.shifted)

    def features(self) -> torch.Tensor:
        return self.target.features(self.shifted)


class BiasedCoin(TorchEngine):
    """Coins are squared: small ones are too frequent, so early candidates are accepted too often."""

    fault = "biased_coin"

    def draw_coins(self, run: Run, n: int) -> NDArray[np.float32]:
        return super().draw_coins(run, n) ** 2


class GreedyKernelAtTemperature(TorchEngine):
    """The greedy rule decides whatever the temperature."""

    fault = "greedy_kernel_at_temperature"

    def decides_greedily(self, run: Run) -> bool:
        return True


ENGINES = by_fault(
    ChainMask,
    PositionByIndex,
    KvNotPacked,
    FlatOffByOne,
    WrongFeatureLayer,
    BiasedCoin,
    GreedyKernelAtTemperature,
)


def engine_class() -> type[TorchEngine]:
    """The engine to use: the sound one, unless DDVIZ_FAULT names a fault.

    Raises RefusedError for an unknown name.
    """
    name = asked_fault()
    return TorchEngine if name is None else ENGINES[name]
