"""Linear layers on the CPU with weights packed once for oneDNN, instead of repacked at every call.

In:  a model, and how many rows its forwards usually have.
Out: the same model, each nn.Linear replaced where that helps.
Not here: CUDA, which has no use for it.

A verify has 2 to 65 rows: few enough that repacking a weight matrix costs as much as multiplying by it. The
packed product differs from the plain one in the last bits only, and every mode of the engine uses the same
one. Measured figures: docs/benchmarks.md.
"""

import torch
from torch import nn


class PackedLinear(nn.Module):
    """x [.., in] -> [.., out] through a packed weight; the plain one is not kept."""

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.out_features, self.dtype = linear.out_features, linear.weight.dtype
        self.bias = linear.bias
        # NOTE: opaque to torch.save and .to(): made after loading, never saved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch has the packed product for this type, on this CPU."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(model: nn.Module, rows: int) -> None:
    """Replace every nn.Linear of `model` by its packed twin."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child, rows))
