"""Products with a matrix for each head through plain torch."""

from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantized_linear import activation_values
from sporelm.backends.torch.torch_weight import TorchWeight


@implements(ops.linear_heads, is_narrow=True)
def linear_heads(x: Tensor, weight: TorchWeight) -> Tensor:
    heads, _, width = weight.shape
    given = activation_values(x.unflatten(1, (heads, -1))[..., -width:].contiguous(), weight)
    return (given.transpose(0, 1) @ weight.values.transpose(1, 2)).transpose(0, 1).flatten(1)
