"""Rows sorted by the matrix that multiplies them: all rows of one matrix in sequence, or in tiles of its rows.

Nothing is read from the device: all shapes follow from the numbers of rows and matrices.
"""

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 16  # rows of one matrix that are multiplied together


class RowTiles(NamedTuple):
    """Rows in tiles, each of one group; a group's last tile is filled up."""

    order: Tensor  # int64 [rows]: the rows, sorted by group
    places: Tensor  # int64 [rows]: of each sorted row among the rows of all tiles
    group_of: Tensor  # int64 [tiles]


def sort_into_groups(groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Return the rows sorted by group, int64 [rows], and the end of each group, int32 [num_groups]."""
    order = groups.argsort(stable=True)
    ends = torch.searchsorted(groups[order], torch.arange(num_groups, device=groups.device), right=True).int()
    return order, ends


def sort_into_tiles(groups: Tensor, num_groups: int) -> RowTiles:
    """Return rows in tiles of TILE rows: `rows / TILE + num_groups` tiles, whatever the groups int64 [rows] are."""
    order = groups.argsort(stable=True)
    in_order = groups[order]
    counts = torch.zeros(num_groups, dtype=torch.int64, device=groups.device)
    counts.index_add_(0, groups, torch.ones_like(groups))
    tiles = (counts + (TILE - 1)) // TILE
    first_tiles, first_rows = tiles.cumsum(0) - tiles, counts.cumsum(0) - counts
    within = torch.arange(len(groups), device=groups.device) - first_rows[in_order]
    num_tiles = -(-len(groups) // TILE) + num_groups
    numbers = torch.arange(num_tiles, device=groups.device)
    group_of = torch.searchsorted(tiles.cumsum(0), numbers, right=True).clamp_(max=num_groups - 1)
    return RowTiles(order, first_tiles[in_order] * TILE + within, group_of)
