"""Products with a matrix for each head through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantized_linear import TorchWeight, activation_values


@implements(ops.linear_heads)
def linear_heads(x: Tensor, weight: TorchWeight) -> Tensor:
    heads, _, width = weight.values.shape
    given = activation_values(x.unflatten(1, (heads, -1))[..., -width:].contiguous(), weight)
    return torch.einsum("thi,hoi->tho", given, weight.values).flatten(1)
