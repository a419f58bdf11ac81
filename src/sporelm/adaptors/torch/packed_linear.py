"""A torch module that multiplies by a packed weight."""

import torch
from torch import Tensor, nn

from sporelm.adaptors.torch.op_library import linear, pack, quantize
from sporelm.quant import format_of


class PackedLinear(nn.Module):
    """`nn.Linear` with its weight in one of our number formats.

    format        its name, such as "Q8_0"
    in_features, out_features, weight, bias
                  as of `nn.Linear`; `weight` is uint8, in the layout of its device's kernels
    """

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, format: str) -> None:
        """Quantize a matrix [out, in] of any floating type. Raises OpError where its rows are not whole blocks."""
        super().__init__()
        self.format = format_of(format).name
        self.out_features, self.in_features = weight.shape
        with torch.no_grad():
            packed = pack(quantize(weight, self.format), self.format, weight.shape)
        self.register_buffer("weight", packed, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias: [..., in] -> [..., out]."""
        return linear(x, self.weight, self.format, (self.out_features, self.in_features), self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, format={self.format}"
