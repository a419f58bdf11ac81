"""Pairs of rows and experts, sorted by expert into tiles that one program multiplies (vLLM: `moe_align_block_size`).

There are two launches, with a program for each expert that looks at all pairs. The number of tiles follows from the
numbers of pairs and experts alone: unused tiles at the end have no expert.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.launch import launch
from sporelm.backends.torch.step_context import STEP

BLOCK = 1024  # pairs that a program looks at together
TILE_BLOCK: tl.constexpr = tl.constexpr(32)  # tiles that a program writes together


class ExpertTiles(NamedTuple):
    """Pairs in tiles of one expert each, on the device."""

    order: Tensor  # int32 [pairs]: sorted by expert, in order for each of them
    places: Tensor  # int32 [3, tiles]: the expert of a tile, -1 for none; its first place in `order`; its expert's end

    @property
    def num_tiles(self) -> int:
        return self.places.shape[1]


@triton.jit
def count_pairs_kernel(ids, counts, pairs, BLOCK: tl.constexpr):
    """Count the pairs of one expert."""
    expert = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        total += (tl.load(ids + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit
def sort_pairs_kernel(
    ids, counts, order, places, pairs, experts, num_tiles,
    TILE: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the pairs of one expert to their places, and its tiles. The last expert also writes the tiles without."""
    expert = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    found = tl.load(counts + each, mask=each < experts, other=0)
    first = tl.sum(tl.where(each < expert, found, 0), 0)
    end = first + tl.sum(tl.where(each == expert, found, 0), 0)
    tiles = (found + (TILE - 1)) // TILE
    first_tile = tl.sum(tl.where(each < expert, tiles, 0), 0)
    end_tile = tl.sum(tl.where(each <= expert, tiles, 0), 0)
    last_written = tl.where(expert == experts - 1, num_tiles, end_tile)
    for start in range(first_tile, last_written, TILE_BLOCK):
        tile = start + tl.arange(0, TILE_BLOCK)
        inside = tile < last_written
        tl.store(places + tile, tl.where(tile < end_tile, expert, -1), mask=inside)
        tl.store(places + num_tiles + tile, first + (tile - first_tile) * TILE, mask=inside)
        tl.store(places + 2 * num_tiles + tile, end + tile * 0, mask=inside)
    place = first
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        is_own = (tl.load(ids + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(is_own, 0) - 1, pair, mask=is_own > 0)
        place += tl.sum(is_own, 0)


def _sort_pairs(ids: Tensor, experts: int, tile: int) -> ExpertTiles:
    pairs = ids.numel()
    num_tiles = pairs // tile + min(pairs, experts)  # every expert may begin one more than it fills
    flat = ids.int().contiguous()
    counts = torch.empty(experts, dtype=torch.int32, device=ids.device)
    tiles = ExpertTiles(
        torch.empty(pairs, dtype=torch.int32, device=ids.device),
        torch.empty(3, num_tiles, dtype=torch.int32, device=ids.device),
    )
    block = min(BLOCK, max(triton.next_power_of_2(pairs), 128))
    launch(count_pairs_kernel, (experts,), flat, counts, pairs, BLOCK=block, num_warps=4)
    launch(
        sort_pairs_kernel,
        (experts,),
        *(flat, counts, tiles.order, tiles.places, pairs, experts, num_tiles),
        TILE=tile,
        EXPERTS=triton.next_power_of_2(experts),
        BLOCK=block,
        num_warps=4,
    )
    return tiles


def sort_pairs(ids: Tensor, experts: int, tile: int) -> ExpertTiles:
    """Return the pairs of ids [tokens, k] in tiles of `tile` pairs: once for all products of a step that share ids."""
    found: ExpertTiles = STEP.share("expert tiles", (ids,), (experts, tile), lambda: _sort_pairs(ids, experts, tile))
    return found
