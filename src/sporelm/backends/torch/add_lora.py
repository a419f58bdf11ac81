"""LoRA through plain torch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.row_groups import TILE, RowTiles, sort_into_groups, sort_into_tiles
from sporelm.backends.torch.step_context import STEP


@implements(ops.add_lora)
def add_lora(y: Tensor, x: Tensor, which: Any, a: Any, b: Any) -> Tensor:
    """Add all adapters at once if they are stacked, else adapter by adapter. `which` is a numpy array, or a tensor."""
    if not isinstance(a, tuple):
        return _add_stacked(y, x, which, a, b)
    result = y.clone()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = (which == number).nonzero()[0].tolist()
        if down is not None and chosen:
            rows = torch.tensor(chosen, device=y.device)
            result.index_add_(0, rows, (x.index_select(0, rows) @ down.T) @ up)
    return result


class _SortedRows(NamedTuple):
    """Rows sorted by slot, those without an adapter last; and the place of each row among them."""

    order: Tensor
    ends: Tensor
    back: Tensor


def _add_stacked(y: Tensor, x: Tensor, which: Any, a: Tensor, b: Tensor) -> Tensor:
    """Add the products with each row's slot of a [slots, rank, in] and b [slots, rank, out].

    Rows are sorted by slot once a step. They are multiplied with a copy of their slot's matrices, alone or in tiles,
    where torch has no grouped products. Rows without an adapter are multiplied as well, and not added.
    """
    slots, rank, width = a.shape

    def place_rows() -> tuple[Tensor, Tensor]:
        slot = torch.as_tensor(which, device=y.device).long()
        return torch.where(slot < 0, slots, slot), (slot >= 0).unsqueeze(1)

    def sort_rows() -> _SortedRows:
        order, ends = sort_into_groups(slot, slots)
        return _SortedRows(order, ends, torch.empty_like(order).index_copy_(0, order, torch.arange(len(x)).to(order)))

    slot, has_adapter = STEP.share("adapter slots", (which,), (slots,), place_rows)
    is_aligned = rank % 8 == width % 8 == b.shape[2] % 8 == 0
    if STEP.is_batch_invariant:
        added = _multiply_tiles(x, slot, a, b)
    elif is_aligned and x.device.type == "cpu" and hasattr(torch.nn.functional, "grouped_mm"):
        rows = STEP.share("rows by slot", (which,), (slots,), sort_rows)
        down = torch.nn.functional.grouped_mm(x.index_select(0, rows.order), a.transpose(1, 2), offs=rows.ends)
        added = torch.nn.functional.grouped_mm(down, b, offs=rows.ends).index_select(0, rows.back)
    elif len(x) <= slots:
        own = slot.clamp(max=slots - 1)
        down = torch.bmm(a.index_select(0, own), x.unsqueeze(2))
        added = torch.bmm(down.transpose(1, 2), b.index_select(0, own)).squeeze(1)
    else:
        added = _multiply_tiles(x, slot, a, b)
    return torch.where(has_adapter, y + added, y)


def _multiply_tiles(x: Tensor, slot: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows in tiles of one slot, with copies of the matrices of each tile's slot."""
    slots = a.shape[0]
    tiles: RowTiles = STEP.share("tiles by slot", (slot,), (slots,), lambda: sort_into_tiles(slot, slots + 1))
    num_tiles, own = len(tiles.group_of), tiles.group_of.clamp(max=slots - 1)
    filled = x.new_zeros(num_tiles * TILE, x.shape[1]).index_copy_(0, tiles.places, x.index_select(0, tiles.order))
    down = torch.bmm(filled.unflatten(0, (num_tiles, TILE)), a.index_select(0, own).transpose(1, 2))
    products = torch.bmm(down, b.index_select(0, own)).flatten(0, 1).index_select(0, tiles.places)
    return torch.empty_like(products).index_copy_(0, tiles.order, products)
