"""Matrix multiplications with a matrix for each head, through plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantized_linear import activation_values
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_weight import INVARIANT_ROWS, TorchWeight


@implements(ops.linear_heads, is_narrow=True)
def linear_heads(x: Tensor, weight: TorchWeight) -> Tensor:
    heads, _, width = weight.shape
    given = activation_values(x.unflatten(1, (heads, -1))[..., -width:].contiguous(), weight)
    matrices = weight.values.transpose(1, 2)
    if not STEP.is_batch_invariant:
        return _multiply(given, matrices)
    filled = pad(given, (0, 0, 0, 0, 0, -len(given) % INVARIANT_ROWS))
    return torch.cat([_multiply(tile, matrices) for tile in filled.split(INVARIANT_ROWS)])[: len(given)]


def _multiply(x: Tensor, matrices: Tensor) -> Tensor:
    """Return the products of [tokens, heads, width] with [heads, width, out]: [tokens, heads * out]."""
    return (x.transpose(0, 1) @ matrices).transpose(0, 1).flatten(1)
