"""Sequences of a step that attend together: their page tables, positions and masks, computed once for all layers.

A step's rows are those of several sequences. Sequences with one row each attend as one batch. In a step with exact
extents, where `starts` and `lengths` are numpy arrays, each longer chunk attends by itself. In a padded step (ADR 0045)
both are on the device, and the rows' places follow from the shapes: first D sequences of one row, then N blocks of
`row_block` rows. A block's sequence has `starts[s + 1] - starts[s]` real rows, which are the last ones of `lengths[s]`
positions; rows behind them are computed and ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_pages import Cache, cache_bits, read_tiles
from sporelm.ops.paged_attention import PAGE

MAX_GATHERED = 1 << 27  # numbers of keys and values that are gathered at a time


@dataclass(frozen=True)
class PagedBatch:
    """Sequences with the same number of rows, and the part of their page tables that some row sees.

    first, stop   their rows among those of the step; None: `rows` numbers them
    rows          int64 [sequences] the row of each, where these are not consecutive
    table         int64 [sequences, columns] pages
    length        positions in `table` of the only sequence: no more is gathered; None: `lengths` and masks say it
    skipped       positions at the beginning of `table` that no row sees, where `length` is given
    positions     int64 [sequences, rows each] of the rows
    places        int64 [sequences, columns * PAGE] positions of the keys
    lengths       int64 [sequences, 1]
    ends          int64 [sequences, rows each] the position past the row's image, 0 for text; None: no images
    """

    num_rows: int  # of each sequence
    table: Tensor
    positions: Tensor
    places: Tensor
    lengths: Tensor
    first: int = 0
    stop: int = 0
    rows: Tensor | None = None
    length: int | None = None
    skipped: int = 0
    ends: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return self.table.shape[0] * self.num_rows

    def take(self, x: Tensor) -> Tensor:
        """Return the rows of this batch: [tokens, ...] -> [sequences, rows each, ...]."""
        found = x[self.first : self.stop] if self.rows is None else x.index_select(0, self.rows)
        return found.unsqueeze(1) if self.num_rows == 1 else found.unflatten(0, (-1, self.num_rows))

    def put(self, out: Tensor, found: Tensor) -> None:
        """Write [sequences, rows each, ...] to the rows of this batch. Changes `out`."""
        if self.rows is None:
            out[self.first : self.stop] = found.flatten(0, 1)
        else:
            out.index_copy_(0, self.rows, found.flatten(0, 1))

    def split(self, numbers_each: int) -> Sequence["PagedBatch"]:
        """Return parts of the batch that gather at most MAX_GATHERED numbers each, given those of one page."""
        count = max(1, MAX_GATHERED // max(1, numbers_each * self.table.shape[1]))
        if self.table.shape[0] <= count:
            return [self]
        return STEP.share("split", (self.table, self.places), (count,), lambda: self._split(count))

    def _split(self, count: int) -> list["PagedBatch"]:
        starts, rows = range(0, self.table.shape[0], count), self.num_rows
        return [
            PagedBatch(
                rows,
                self.table[start : start + count],
                self.positions[start : start + count],
                self.places[start : start + count],
                self.lengths[start : start + count],
                self.first + start * rows,
                self.first + min(start + count, self.table.shape[0]) * rows,
                None if self.rows is None else self.rows[start : start + count],
                ends=None if self.ends is None else self.ends[start : start + count],
            )
            for start in starts
        ]

    def gather(self, cache: Cache, dtype: torch.dtype) -> Tensor:
        """Return the cache's numbers at `places`: [2 (or 1), sequences, kv_heads, positions, head_dim].

        Positions beyond a sequence's length read as 0: a page may hold NaN of a sequence that had it before.
        """
        halves, kv_heads = cache_bits(cache).shape[1:3]

        def number_tiles() -> Tensor:
            half = torch.arange(halves, device=self.table.device).view(-1, 1, 1, 1)
            head = torch.arange(kv_heads, device=self.table.device).view(-1, 1)
            return ((self.table.unsqueeze(1) * halves + half) * kv_heads + head).flatten()

        tiles = STEP.share("tiles", (self.table,), (halves, kv_heads), number_tiles)
        found = read_tiles(cache, tiles, dtype).view(halves, self.table.shape[0], kv_heads, -1, cache.shape[-1])
        if self.length is not None:
            return found.narrow(3, self.skipped, self.length - self.skipped)
        return found.masked_fill_(self._stale(), 0)

    def _stale(self) -> Tensor:
        """Return which gathered positions are beyond the sequence: [sequences, 1, positions, 1]."""
        return STEP.share("stale", (self.places,), (), lambda: (self.places >= self.lengths)[:, None, :, None])

    def find_visible(self, window: int | None, chunk: int | None) -> Tensor | None:
        """Return which positions each row sees: [sequences, rows each, positions]. None: all."""
        if self.length is not None and self.num_rows == 1:  # `skipped` leaves exactly these
            return None
        return STEP.share(
            "seen", (self.places, self.positions), (window, chunk), lambda: self._compare_positions(window, chunk)
        )

    def _compare_positions(self, window: int | None, chunk: int | None) -> Tensor:
        place, row = self.places.unsqueeze(1), self.positions.unsqueeze(2)
        seen = place <= row if self.ends is None else (place <= row) | (place < self.ends.unsqueeze(2))
        seen = seen if window is None else seen & (place > row - window)
        return seen if chunk is None else seen & (place >= row // chunk * chunk)

    def mask(self, window: int | None, chunk: int | None, repeats: int, dtype: torch.dtype) -> Tensor | None:
        """Return numbers to add to scores [sequences, kv_heads, repeats * rows each, positions]: 0, or -inf where a row
        does not see. None: it sees all."""
        seen = self.find_visible(window, chunk)
        if seen is None:
            return None

        def build() -> Tensor:
            added = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            added = added.unsqueeze(1)
            return added if self.num_rows == 1 else added.repeat(1, 1, repeats, 1)

        return STEP.share("mask", (self.places, self.positions), (window, chunk, repeats, dtype), build)

    def is_causal(self, window: int | None, chunk: int | None) -> bool:
        """Return whether these are all positions of one sequence, and each row sees all positions up to its own."""
        whole = self.length == self.num_rows > 1 and self.ends is None
        return whole and all(limit is None or limit >= self.num_rows for limit in (window, chunk))


def batches(
    starts: Any,
    lengths: Any,
    pages: Tensor,
    num_tokens: int,
    num_pages: int,
    window: int | None,
    chunk: int | None,
    spans: Tensor | None = None,
) -> Sequence[PagedBatch]:
    """Return the batches of a step, in any order of its rows. Each row with a result is in one of them.

    spans  int32 [tokens, 2] of `ops.attention`. Sequences of one row have no use for it: no image goes on behind them.
    """

    def build() -> list[PagedBatch]:
        if isinstance(starts, np.ndarray):
            return _exact(starts, lengths, pages, num_pages, window, chunk, spans)
        return _padded(starts, lengths, pages, num_tokens, num_pages, window, chunk, spans)

    return STEP.share("batches", (starts, lengths, pages, spans), (num_tokens, num_pages, window, chunk), build)


def _exact(
    starts: Any,
    lengths: Any,
    pages: Tensor,
    num_pages: int,
    window: int | None,
    chunk: int | None,
    spans: Tensor | None,
) -> list[PagedBatch]:
    counts = np.diff(starts)
    decodes = np.flatnonzero(counts == 1)
    found = []
    if len(decodes) == 1 and not STEP.is_batch_invariant:
        found.append(_single(int(decodes[0]), starts, lengths, pages, window, chunk))
    elif len(decodes):
        device, held = pages.device, lengths[decodes].astype(np.int64)
        first_pages = _lowest(held - 1, window, chunk) // PAGE
        columns = int((-(-held // PAGE) - first_pages).max())
        rows = starts[decodes].astype(np.int64)
        which, positions, firsts = (
            torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (decodes, held - 1, first_pages)
        )
        is_run = bool((np.diff(rows) == 1).all())
        found.append(
            _batch(
                pages if len(decodes) == len(counts) else pages.index_select(0, which),
                positions.unsqueeze(1),
                positions + 1,
                firsts,
                columns,
                num_pages,
                first=int(rows[0]),
                stop=int(rows[0]) + len(rows),
                rows=None if is_run else torch.from_numpy(rows).to(device),
            )
        )
    return found + [
        _single(int(sequence), starts, lengths, pages, window, chunk, spans) for sequence in np.flatnonzero(counts > 1)
    ]


def _lowest(positions: Any, window: int | None, chunk: int | None) -> Any:
    """Return the lowest position that rows at these positions see."""
    lowest = positions * 0 if window is None else (positions - (window - 1)).clip(0)
    return lowest if chunk is None else positions // chunk * chunk


def _single(
    sequence: int,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    window: int | None,
    chunk: int | None,
    spans: Tensor | None = None,
) -> PagedBatch:
    """Return the batch of one sequence, with what its first row sees and all after that."""
    first, stop, length = int(starts[sequence]), int(starts[sequence + 1]), int(lengths[sequence])
    lowest = int(_lowest(np.int64(length - (stop - first)), window, chunk))
    page, device = lowest // PAGE, pages.device
    return PagedBatch(
        stop - first,
        pages[sequence : sequence + 1, page : -(-length // PAGE)].long(),
        torch.arange(length - (stop - first), length, device=device).unsqueeze(0),
        torch.arange(lowest, length, device=device).unsqueeze(0),
        torch.full((1, 1), length, device=device),
        first,
        stop,
        length=length - page * PAGE,
        skipped=lowest - page * PAGE,
        ends=None if spans is None else spans[first:stop, 1].long().unsqueeze(0),
    )


def _batch(
    pages: Tensor, positions: Tensor, lengths: Tensor, first_pages: Tensor, columns: int, num_pages: int, **where: Any
) -> PagedBatch:
    """Return a batch that gathers `columns` pages of each sequence, from `first_pages` on."""
    column = first_pages.unsqueeze(1) + torch.arange(columns, device=pages.device)
    table = pages.gather(1, column.clamp(max=pages.shape[1] - 1)).clamp(0, num_pages - 1).long()
    places = first_pages.unsqueeze(1) * PAGE + torch.arange(columns * PAGE, device=pages.device)
    return PagedBatch(positions.shape[1], table, positions, places, lengths.unsqueeze(1), **where)


def _padded(
    starts: Tensor,
    lengths: Tensor,
    pages: Tensor,
    num_tokens: int,
    num_pages: int,
    window: int | None,
    chunk: int | None,
    spans: Tensor | None,
) -> list[PagedBatch]:
    block, total = STEP.row_block, len(lengths)
    blocks = (num_tokens - total) // (block - 1) if block > 1 else 0
    decodes, held = total - blocks, lengths.long()
    found = []
    for first, stop, rows in ((0, decodes, 1), (decodes, total, block)):
        if first == stop:
            continue
        part = held[first:stop]
        begins = part - (1 if rows == 1 else (starts[first + 1 : stop + 1] - starts[first:stop]).long())
        row = torch.arange(rows, device=pages.device)
        positions = torch.minimum(begins.clamp(min=0).unsqueeze(1) + row, part.unsqueeze(1) - 1)
        columns, start, ends = pages.shape[1], first if rows == 1 else decodes, None
        if spans is not None and rows > 1:  # an image may go on in later blocks, whose keys are in the same pages
            ends = spans[start : start + (stop - first) * rows, 1].long().unflatten(0, (-1, rows))
            part = torch.maximum(part, ends.amax(dim=1))
        elif window is not None or chunk is not None:
            reach = min(limit for limit in (window, chunk) if limit is not None) + rows - 1
            columns = min(columns, -(-(reach - 1) // PAGE) + 1)
        first_pages = _lowest(positions[:, 0], window, chunk) // PAGE
        found.append(
            _batch(
                pages[first:stop],
                positions,
                part,
                first_pages,
                columns,
                num_pages,
                first=start,
                stop=start + (stop - first) * rows,
                ends=ends,
            )
        )
    return found
