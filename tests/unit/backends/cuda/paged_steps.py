"""Steps over pages, with exact extents and padded (ADR 0045), for tests of attention kernels."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

PAGE = 64


class Chunk(NamedTuple):
    """Rows of a sequence in a step, and its positions with these."""

    rows: int
    length: int


class PagedStep(NamedTuple):
    """The arguments of attention: numpy `starts` and `lengths`, or those of a padded step on the device."""

    starts: Any
    lengths: Any
    pages: Any  # int32 [sequences, columns]
    num_pages: int  # of the cache
    num_rows: int
    dump_page: int = 0

    def select(self, index: int) -> "PagedStep":
        """Return a step with one of the sequences."""
        rows = int(self.starts[index + 1] - self.starts[index])
        starts = np.array([0, rows], np.int32)
        return self._replace(
            starts=starts, lengths=self.lengths[index : index + 1], pages=self.pages[index : index + 1]
        )


def make_step(chunks: Sequence[Chunk]) -> PagedStep:
    """Return a step with exact extents. Page tables are scattered, and name no page past a sequence's end."""
    import torch

    counts = [-(-chunk.length // PAGE) for chunk in chunks]
    free = iter(np.random.default_rng(0).permutation(sum(counts)))
    pages = np.full((len(chunks), max(counts) + 1), 2**31 - 1, np.int32)
    for table, count in zip(pages, counts, strict=True):
        table[:count] = [next(free) for _ in range(count)]
    starts = np.cumsum([0, *(chunk.rows for chunk in chunks)]).astype(np.int32)
    lengths = np.array([chunk.length for chunk in chunks], np.int32)
    return PagedStep(starts, lengths, torch.from_numpy(pages), sum(counts) + 1, int(starts[-1]), sum(counts))


def pad_step(
    step: PagedStep, chunks: Sequence[Chunk], row_block: int, decodes: int, blocks: int
) -> tuple[PagedStep, Any]:
    """Return a padded step with these numbers of decoded rows and blocks, and the place of each real row in it."""
    import torch

    tables, counts, lengths = [], [], []
    places: dict[int, list[int]] = {}
    singles = [index for index, chunk in enumerate(chunks) if chunk.rows == 1]
    dump = torch.full_like(step.pages[0], step.dump_page)
    for number, index in enumerate([*singles, *[-1] * (decodes - len(singles))]):
        tables.append(step.pages[index] if index >= 0 else dump)
        counts.append(1)
        lengths.append(chunks[index].length if index >= 0 else 1)
        places[index] = [number]
    for index, chunk in enumerate(chunks):
        for first in range(0, chunk.rows if chunk.rows > 1 else 0, row_block):
            count = min(row_block, chunk.rows - first)
            row = decodes + (len(tables) - decodes) * row_block
            places.setdefault(index, []).extend(range(row, row + count))
            tables.append(step.pages[index])
            counts.append(count)
            lengths.append(chunk.length - chunk.rows + first + count)
    while len(tables) < decodes + blocks:
        tables.append(dump)
        counts.append(1)
        lengths.append(1)
    starts, held = (torch.from_numpy(np.array(each, np.int32)) for each in (np.cumsum([0, *counts]), lengths))
    padded = step._replace(
        starts=starts, lengths=held, pages=torch.stack(tables), num_rows=decodes + blocks * row_block
    )
    return padded, torch.tensor([place for index in range(len(chunks)) for place in places[index]])
