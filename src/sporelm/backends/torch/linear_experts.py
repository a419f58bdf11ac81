"""Products with the matrices of experts, and their weighted sum, through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.elementwise import silu_mul
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.quantized_linear import TorchWeight, activation_values


@implements(ops.linear_experts)
def linear_experts(x: Tensor | RoundedRows, weight: TorchWeight, ids: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply a few pairs of tokens and experts with copies of their matrices, without waiting for the device.

    Many pairs are multiplied one expert after the other. For these the device is asked once where each expert's pairs
    end.
    """
    rows = activation_values(x, weight)
    pairs = ids.flatten().long()
    tokens = torch.arange(len(pairs), device=pairs.device)
    rows = rows[tokens // ids.shape[1]] if rows.dim() == 2 else rows.flatten(0, 1)
    if len(pairs) <= len(weight.values):
        y = (weight.values[pairs] @ rows.unsqueeze(2)).squeeze(2)
    else:
        order = pairs.argsort(stable=True)
        counts = torch.zeros(len(weight.values), dtype=torch.int64, device=pairs.device)
        counts.index_add_(0, pairs, torch.ones_like(pairs))
        parts = rows[order].split(counts.tolist())
        sums = [part @ matrix.T for part, matrix in zip(parts, weight.values, strict=True)]
        y = torch.empty_like(torch.cat(sums)).index_copy_(0, order, torch.cat(sums))
    if bias is not None:
        y = y + bias[pairs]
    return y.unflatten(0, ids.shape)


@implements(ops.linear_experts_silu_mul)
def linear_experts_silu_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight, ids: Tensor) -> Tensor:
    return silu_mul(linear_experts(x, gate, ids), linear_experts(x, up, ids))


@implements(ops.combine_experts)
def combine_experts(y: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = y.reshape(*weights.shape, y.shape[-1])
    total = weights[:, :1] * rows[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * rows[:, slot]
    return total if bias is None else total + bias
