"""Matrix multiplications with the matrices of experts, and the weighted sum, through plain torch.

A pair is a row and one of its experts. Nothing is read from the device: the shapes of all products follow from the
numbers of pairs and experts alone.
"""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.elementwise import silu_mul
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.quantized_linear import activation_values
from sporelm.backends.torch.row_groups import TILE, sort_into_groups, sort_into_tiles
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_weight import TorchWeight

MAX_COPIED = 1 << 26  # numbers of experts' matrices that are copied at a time


@implements(ops.linear_experts, is_narrow=True)
def linear_experts(
    x: Tensor | RoundedRows, weight: TorchWeight, ids: Tensor, bias: Tensor | None = None, *, first: int | None = None
) -> Tensor:
    if first is not None:
        ids, is_foreign = local_experts(ids, first, weight.shape[0])
        return linear_experts(x, weight, ids, bias).masked_fill_(is_foreign.unsqueeze(2), 0)
    rows = activation_values(x, weight)
    pairs = ids.flatten().long()
    if rows.dim() == 2:
        rows = rows.repeat_interleave(ids.shape[1], dim=0) if ids.shape[1] > 1 else rows
    else:
        rows = rows.flatten(0, 1)
    if len(pairs) <= weight.shape[0] and not STEP.is_batch_invariant:
        y = _multiply_pairs(rows, weight, pairs)
    elif _has_grouped_products(weight):
        y = _multiply_groups(rows, weight, pairs)
    else:
        y = _multiply_tiles(rows, weight, pairs)
    if bias is not None:
        y = y.add_(bias[pairs])
    return y.unflatten(0, ids.shape)


def local_experts(ids: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the ids of a part of all experts, from `first` on, and which of them belong to other parts, as 0."""
    local = ids - first
    is_foreign = (local < 0) | (local >= count)
    return local.masked_fill(is_foreign, 0), is_foreign


def _multiply_pairs(rows: Tensor, weight: TorchWeight, pairs: Tensor) -> Tensor:
    """Multiply each row by a copy of its expert's matrix."""
    count = max(1, MAX_COPIED // (weight.shape[1] * weight.shape[2]))
    found = [
        (weight.select(which) @ part.unsqueeze(2)).squeeze(2)
        for part, which in zip(rows.split(count), pairs.split(count), strict=True)
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def _has_grouped_products(weight: TorchWeight) -> bool:
    """Return whether torch multiplies rows sorted by expert in one call: bfloat16, and float32 on the CPU."""
    is_aligned = weight.shape[1] % 8 == weight.shape[2] % 8 == 0
    is_typed = weight.dtype is torch.bfloat16 or (weight.dtype is torch.float32 and weight.device.type == "cpu")
    return is_aligned and is_typed and not STEP.is_batch_invariant and hasattr(torch.nn.functional, "grouped_mm")


def _multiply_groups(rows: Tensor, weight: TorchWeight, pairs: Tensor) -> Tensor:
    """Multiply pairs sorted by expert, all experts in one call."""
    order, ends = sort_into_groups(pairs, weight.shape[0])
    products = torch.nn.functional.grouped_mm(rows[order], weight.values.transpose(1, 2), offs=ends)
    return torch.empty_like(products).index_copy_(0, order, products)


def _multiply_tiles(rows: Tensor, weight: TorchWeight, pairs: Tensor) -> Tensor:
    """Sort pairs by expert into tiles of one expert, filled up with zeros, and multiply tile by tile."""
    order, places, expert_of = sort_into_tiles(pairs, weight.shape[0])
    num_tiles = len(expert_of)
    filled = rows.new_zeros(num_tiles * TILE, rows.shape[1]).index_copy_(0, places, rows[order])
    products = _multiply_each(filled.unflatten(0, (num_tiles, TILE)), weight, expert_of)
    return torch.empty_like(products[: len(pairs)]).index_copy_(0, order, products.index_select(0, places))


def _multiply_each(tiles: Tensor, weight: TorchWeight, expert_of: Tensor) -> Tensor:
    """Return the products of tiles [tiles, TILE, in] with their experts' matrices: [tiles * TILE, out]."""
    numbers = weight.shape[1] * weight.shape[2]
    count = max(1, MAX_COPIED // numbers)
    found = [
        part @ weight.select(which).transpose(1, 2)
        for part, which in zip(tiles.split(count), expert_of.split(count), strict=True)
    ]
    return torch.cat(found).flatten(0, 1)


@implements(ops.linear_experts_silu_mul, is_narrow=True)
def linear_experts_silu_mul(
    x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight, ids: Tensor, *, first: int | None = None
) -> Tensor:
    return silu_mul(linear_experts(x, gate, ids, first=first), linear_experts(x, up, ids, first=first))


@implements(ops.combine_experts)
def combine_experts(y: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = y.reshape(*weights.shape, y.shape[-1])
    total = weights[:, :1] * rows[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * rows[:, slot]
    return total if bias is None else total + bias
