"""Tiles of query rows over pages, shared by attention kernels: which rows a program has, and how splits are merged.

The rows of a sequence in a step, its chunk, have the order (row, head of the group): a tile is a run of BLOCK_M of
them. Short chunks, such as decoded rows and drafts, are split at fixed positions of their sequence (Flash-Decoding), so
that a few rows use the whole GPU; long chunks fill it with their tiles. Whether a chunk is split, where splits begin,
and the order in which they are merged depend only on the chunk: a row's result is the same in any batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import dot, narrow
from sporelm.backends.torch.step_context import STEP
from sporelm.ops.paged_attention import PAGE

SPLIT = 256  # positions of a split
SHORT_ROWS = 16  # of a chunk that is split
MAX_PARTIAL_NUMBERS = 1 << 26  # of the partial results of a launch
MERGED_SPLITS, MERGED_COLUMNS = 32, 64  # of a merging program's tile
LOG2_E = 1.4426950408889634

TILE_FIELDS = 6  # sequence, first row in q, real rows, length, first number of the tile, rows that have a place in q

_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)
_FIELDS: tl.constexpr = tl.constexpr(TILE_FIELDS)


class Mask(NamedTuple):
    """Which positions a row sees besides its own: 0 means no limit."""

    window: int = 0
    chunk: int = 0

    def lowest(self, positions: Any) -> Any:
        """Return the lowest position that rows at these positions see."""
        if self.chunk:
            return positions // self.chunk * self.chunk
        return np.maximum(positions - (self.window - 1), 0) if self.window else positions * 0

    def max_splits(self, columns: int, rows: int) -> int:
        """Return the greatest number of splits that `rows` rows see, given the columns of the page table."""
        splits = ceil(columns * PAGE / SPLIT)
        reach = min((limit for limit in self if limit), default=0)
        return min(splits, (reach + rows + SPLIT - 3) // SPLIT + 1) if reach else splits


@dataclass(frozen=True)
class QueryTiles:
    """Tiles of one launch, or of several.

    table       int32 [tiles, TILE_FIELDS]
    block_rows  numbers of a tile: BLOCK_M
    held_rows   numbers of a tile that may be real
    num_splits  of each tile at most; 0: chunks are not split
    min_rows, max_rows  of a chunk: tiles of other chunks are left out on the device
    """

    table: Tensor
    block_rows: int
    held_rows: int
    num_splits: int
    min_rows: int
    max_rows: int

    def slices(self, numbers_each: int) -> Iterator[Tensor]:
        """Yield parts of the table, given the partial results of one row of a tile in one split."""
        count = max(1, MAX_PARTIAL_NUMBERS // max(1, numbers_each * self.held_rows * self.num_splits))
        for start in range(0, len(self.table), count):
            yield self.table[start : start + count]


def find_tiles(
    starts: Any,
    lengths: Any,
    pages: Tensor,
    num_tokens: int,
    group: int,
    mask: Mask,
    block_rows: int,
    *,
    has_spans: bool = False,
) -> Sequence[QueryTiles]:
    """Return the tiles of a step.

    group       query heads that attend to the same keys
    block_rows  numbers of a tile of a long chunk, and of any tile at most
    has_spans   whether rows may see positions behind their own: those of their image

    `starts` and `lengths` are numpy arrays, or on the device in a padded step (ADR 0045), where rows lie in the shapes'
    order: sequences of one row, and then blocks of `row_block` rows.
    """

    def build() -> list[QueryTiles]:
        if isinstance(starts, np.ndarray):
            return _exact(starts, lengths, pages, group, mask, block_rows)
        return _padded(starts, lengths, pages, num_tokens, group, mask, block_rows, has_spans)

    options = (num_tokens, group, mask, block_rows, has_spans)
    return STEP.share("tiles of queries", (starts, lengths, pages), options, build)


def split_block_rows(rows: int, group: int, max_block: int) -> int:
    """Return the numbers of a tile, at most `max_block`, of split chunks of at most this many rows."""
    least = 16 if rows == 1 else 32
    return min(max(triton.next_power_of_2(group), least), 64, max_block)


def _exact(starts: Any, lengths: Any, pages: Tensor, group: int, mask: Mask, block_rows: int) -> list[QueryTiles]:
    counts, held = np.diff(starts).astype(np.int64), np.asarray(lengths, np.int64)
    found = []
    for least, most in ((1, 1), (2, SHORT_ROWS), (SHORT_ROWS + 1, None)):
        chosen = np.flatnonzero((counts >= least) & (counts <= (most or counts.max(initial=0))))
        if not len(chosen):
            continue
        block = block_rows if most is None else split_block_rows(most, group, block_rows)
        tiles = -(-counts[chosen] * group // block)
        which = np.repeat(chosen, tiles)
        number = np.arange(len(which)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        rows = counts[which]
        fields = (which, np.asarray(starts)[which], rows, held[which], number * block, rows)
        table = torch.from_numpy(np.stack(fields, axis=1).astype(np.int32)).to(pages.device)
        lowest = mask.lowest(held[chosen] - counts[chosen])
        splits = 0 if most is None else int((-(-held[chosen] // SPLIT) - lowest // SPLIT).max())
        found.append(
            QueryTiles(table, block, min(block, (most or block) * group), splits, least, most or int(counts.max()))
        )
    return found


def _padded(
    starts: Tensor,
    lengths: Tensor,
    pages: Tensor,
    num_tokens: int,
    group: int,
    mask: Mask,
    block_rows: int,
    has_spans: bool,
) -> list[QueryTiles]:
    block, total, columns = STEP.row_block, len(lengths), pages.shape[1]
    num_blocks = (num_tokens - total) // (block - 1) if block > 1 else 0
    decodes = total - num_blocks
    numbers = torch.arange(total, dtype=torch.int32, device=pages.device)
    counts = (starts[1:] - starts[:-1]).int()
    found = []
    if decodes:
        size = split_block_rows(1, group, block_rows)
        row, one = numbers[:decodes], torch.ones_like(numbers[:decodes])
        table = _repeat((row, row, one, lengths[:decodes].int(), one), triton.cdiv(group, size), size)
        found.append(QueryTiles(table, size, min(size, group), mask.max_splits(columns, 1), 1, 1))
    if num_blocks:
        row = decodes + (numbers[decodes:] - decodes) * block
        fields = (numbers[decodes:], row, counts[decodes:], lengths[decodes:].int(), torch.full_like(row, block))
        size = split_block_rows(SHORT_ROWS, group, block_rows)
        table, held = _repeat(fields, triton.cdiv(SHORT_ROWS * group, size), size), min(size, SHORT_ROWS * group)
        reach = Mask() if has_spans else mask  # an image may go on in later blocks
        found.append(QueryTiles(table, size, held, reach.max_splits(columns, SHORT_ROWS), 1, SHORT_ROWS))
        table = _repeat(fields, triton.cdiv(block * group, block_rows), block_rows)
        found.append(QueryTiles(table, block_rows, block_rows, 0, SHORT_ROWS + 1, block))
    return found


def _repeat(fields: Sequence[Tensor], tiles: int, size: int) -> Tensor:
    """Return the table of `tiles` tiles for each chunk: `fields` are those of a chunk, without the tile's first
    number."""
    *most, capacity = (each.unsqueeze(1).expand(-1, tiles) for each in fields)
    first = torch.arange(0, tiles * size, size, dtype=torch.int32, device=capacity.device)
    return torch.stack((*most, first.expand_as(capacity), capacity), dim=2).flatten(0, 1).contiguous()


@triton.jit
def load_rows(tiles, tile, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return what a tile has: its sequence, the chunk's first row in q, its real rows, its length, the tile's first
    number, the rows that have a place in q, and for each number int32 [BLOCK_M] the row in the chunk and the head in
    the group. Numbers behind the real rows repeat the last row."""
    fields = tiles + tile.to(tl.int64) * _FIELDS
    rows, first = tl.load(fields + 2), tl.load(fields + 4)
    number = first + tl.arange(0, BLOCK_M)
    row = tl.minimum(number // GROUP, rows - 1)
    return tl.load(fields), tl.load(fields + 1), rows, tl.load(fields + 3), first, tl.load(fields + 5), row, (
        number % GROUP
    )  # fmt: skip


@triton.jit
def find_lowest(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Return the lowest position that a row at `position` sees."""
    if CHUNK > 0:
        return position // CHUNK * CHUNK
    elif WINDOW > 0:
        return tl.maximum(position - (WINDOW - 1), 0)
    else:
        return position * 0


@triton.jit
def find_span(
    rows, length, first, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr
):
    """Return the positions of a tile's first and last row, and the lowest position that one of its rows sees."""
    begin = length - rows
    low = begin + tl.minimum(first // GROUP, rows - 1)
    high = begin + tl.minimum((first + BLOCK_M - 1) // GROUP, rows - 1)
    return low, high, find_lowest(low, WINDOW, CHUNK)


@triton.jit
def find_last(spans, first_row, row, position):
    """Return the last position that each row of a tile sees: its own, or the last of its image.

    spans  int32 [tokens, 2]: the position past an image's last, after that of its first; zeros for text
    """
    stop = tl.load(spans + (first_row + row).to(tl.int64) * 2 + 1)
    return tl.maximum(position, stop - 1)


@triton.jit
def add_keys(scores, values, peak, total, mixed):
    """Return the greatest score, the sum of weights and the weighted sum of values with more keys added.

    scores [M, N] in units of log 2, -inf for keys that a row does not see; values [N, D]; the others have M rows.
    """
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - shift[:, None])
    kept = tl.exp2(peak - shift)
    total = total * kept + tl.sum(weights, 1)
    mixed = dot(narrow(weights, values.dtype), values, mixed * kept[:, None])
    return new_peak, total, mixed


@triton.jit
def store_partial(
    partial, statistics, place, peak, total, mixed, row_is_real,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HELD: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Write what a split found for the rows of a tile: `place` numbers the tile, head and split."""
    lane, column = tl.arange(0, BLOCK_M), tl.arange(0, COLUMNS)[None, :]
    rows = place * HELD + lane
    keep = row_is_real & (lane < HELD)
    tl.store(statistics + rows * 2, peak, mask=keep)
    tl.store(statistics + rows * 2 + 1, total, mask=keep)
    tl.store(partial + rows[:, None] * WIDTH + column, mixed, mask=keep[:, None] & (column < WIDTH))


@triton.jit
def merge_splits_kernel(
    partial, statistics, tiles, sinks, spans, out, out_stride, kv_heads, num_splits, min_rows, max_rows,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, HELD: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SPLIT_SIZE: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write COLUMNS numbers of the result of one row and head: the sum of its splits, in their order."""
    tile, lane = tl.program_id(0), tl.program_id(1) % HELD
    kv_head = tl.program_id(1) // HELD
    fields = tiles + tile.to(tl.int64) * _FIELDS
    rows, length, first = tl.load(fields + 2), tl.load(fields + 3), tl.load(fields + 4)
    number = first + lane
    if rows < min_rows or rows > max_rows or number >= rows * GROUP:
        return
    _, high, lowest = find_span(rows, length, first, GROUP, BLOCK_M, WINDOW, CHUNK)
    if spans is not None:  # the splits are those of the whole tile
        rows_of_tile = tl.minimum((first + tl.arange(0, BLOCK_M)) // GROUP, rows - 1)
        high = tl.max(find_last(spans, tl.load(fields + 1), rows_of_tile, length - rows + rows_of_tile), 0)
    count = high // SPLIT_SIZE + 1 - lowest // SPLIT_SIZE
    base = (tile.to(tl.int64) * kv_heads + kv_head) * num_splits
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    split = tl.arange(0, SPLITS)
    top = tl.full((), float("-inf"), tl.float32)
    for start in range(0, count, SPLITS):
        there = start + split < count
        rows_of_splits = (base + start + split) * HELD + lane
        top = tl.maximum(top, tl.max(tl.load(statistics + rows_of_splits * 2, mask=there, other=float("-inf")), 0))
    total = tl.zeros((), tl.float32)
    head = kv_head * GROUP + number % GROUP
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        top = tl.maximum(top, sink)
        total = tl.exp2(sink - top)
    mixed = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, count, SPLITS):
        there = start + split < count
        rows_of_splits = (base + start + split) * HELD + lane
        share = tl.exp2(tl.load(statistics + rows_of_splits * 2, mask=there, other=float("-inf")) - top)
        total += tl.sum(share * tl.load(statistics + rows_of_splits * 2 + 1, mask=there, other=0.0), 0)
        pointers = partial + rows_of_splits[:, None] * WIDTH + column
        numbers = tl.load(pointers, mask=there[:, None] & (column < WIDTH), other=0.0)
        mixed += tl.sum(numbers * share[:, None], 0)
    row = (tl.load(fields + 1) + number // GROUP).to(tl.int64)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    place = out + row * out_stride + head * WIDTH + column
    tl.store(place, narrow(mixed / total, out.dtype.element_ty), mask=column < WIDTH)


def allocate_partials(table: Tensor, tiles: QueryTiles, kv_heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Return memory for the weighted sums of each row in each split, and for the greatest scores and sums of
    weights."""
    shape = (len(table), kv_heads, tiles.num_splits, tiles.held_rows)
    return (
        torch.empty((*shape, width), dtype=torch.float32, device=table.device),
        torch.empty((*shape, 2), dtype=torch.float32, device=table.device),
    )


def merge_splits(
    partials: tuple[Tensor, Tensor],
    table: Tensor,
    tiles: QueryTiles,
    out: Tensor,
    sinks: Tensor | None,
    group: int,
    mask: Mask,
    spans: Tensor | None = None,
) -> None:
    """Write the results of the tiles in `table` from those of their splits."""
    partial, statistics = partials
    _, kv_heads, num_splits, held_rows, width = partial.shape
    columns = min(triton.next_power_of_2(width), MERGED_COLUMNS)
    launch(
        merge_splits_kernel,
        (len(table), kv_heads * held_rows, triton.cdiv(width, columns)),
        *(partial, statistics, table, sinks, spans, out, out.stride(0), kv_heads, num_splits),
        *(tiles.min_rows, tiles.max_rows),
        GROUP=group,
        WIDTH=width,
        BLOCK_M=tiles.block_rows,
        HELD=held_rows,
        WINDOW=mask.window,
        CHUNK=mask.chunk,
        SPLIT_SIZE=SPLIT,
        SPLITS=MERGED_SPLITS,
        COLUMNS=columns,
        num_warps=4,
    )
