"""The inputs of a step padded to buckets, for devices that replay few shapes (ADR 0045)."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from sporelm.backends.protocol import InputBuckets
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import BackendError
from sporelm.ops.paged_attention import PAGE

Extents = dict[str, int]


class PaddedInputs:
    """The int32 arrays of a step.

    Rows of sequences with one row come first. Longer chunks follow, cut into blocks of `row_block` rows, each block a
    sequence with the same pages. So the place of each row follows from the shapes; `starts` has the sums of the real
    rows. Numbers of rows, blocks, pages and outputs are padded to buckets. A padded row has token 0 at position 0, and
    writes to the dump page, which no sequence has; a padded sequence has one position there.
    """

    def __init__(self, limits: EngineConfig, buckets: InputBuckets, dump_page: int) -> None:
        self.buckets, self.dump_page = buckets, dump_page
        self.decodes = limit_bucket(buckets.decodes, limits.max_batch)
        num_blocks = limits.token_budget // buckets.row_block + min(limits.max_batch, limits.token_budget)
        self.blocks = limit_bucket(buckets.blocks, num_blocks)
        self.columns = limit_bucket(buckets.pages, count_pages(limits.max_context))
        self.outputs = limit_bucket(buckets.outputs, limits.token_budget)

    @property
    def max_tokens(self) -> int:
        """Rows of the largest step."""
        return self.decodes[-1] + self.blocks[-1] * self.buckets.row_block

    @property
    def max_sequences(self) -> int:
        """Sequences of the largest step, each block counted."""
        return self.decodes[-1] + self.blocks[-1]

    def fill(self, step: Step) -> tuple[dict[str, np.ndarray], Extents, list[int]]:
        """Return the arrays of a step by name, its extents by symbol, and the first row of each of its sequences."""
        block = self.buckets.row_block
        singles = [index for index, each in enumerate(step.sequences) if len(each.tokens) == 1]
        chunks = [index for index, each in enumerate(step.sequences) if len(each.tokens) > 1]
        num_blocks = sum(-(-len(step.sequences[index].tokens) // block) for index in chunks)
        decodes, blocks = round_up(self.decodes, len(singles)), round_up(self.blocks, num_blocks)
        if not decodes and not blocks:
            raise BackendError("a step needs at least one sequence")
        tokens = np.zeros(decodes + blocks * block, np.int32)
        positions = np.zeros_like(tokens)
        slots = np.full_like(tokens, self.dump_page * PAGE)
        lengths = np.ones(decodes + blocks, np.int32)
        longest = max(each.position + len(each.tokens) for each in step.sequences)
        pages = np.full((decodes + blocks, round_up(self.columns, count_pages(longest))), self.dump_page, np.int32)
        counts = np.ones(decodes + blocks, np.int32)  # real rows
        first_rows = [0] * len(step.sequences)
        for row, index in enumerate(singles):
            _, ids, position, page_table, *_ = step.sequences[index]
            first_rows[index] = row
            tokens[row], positions[row], lengths[row] = ids[0], position, position + 1
            slots[row] = page_table[position // PAGE] * PAGE + position % PAGE
            count = min(len(page_table), pages.shape[1])
            pages[row, :count] = page_table[:count]
        number = 0
        for index in chunks:
            each = step.sequences[index]
            first_rows[index] = decodes + number * block
            number += self._fill_chunk(each, decodes, number, tokens, positions, slots, counts, lengths, pages)
        rows = output_rows(step, first_rows)
        outputs = np.zeros(round_up(self.outputs, max(1, len(rows))), np.int32)
        outputs[: len(rows)] = rows
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
        arrays = {"tokens": tokens, "positions": positions, "slots": slots, "starts": starts, "lengths": lengths}
        arrays |= {"pages": pages, "rows": outputs, "states": np.zeros(len(lengths), np.int32)}
        extents = {"tokens": len(tokens), "sequences": len(lengths), "starts": len(starts), "rows": len(outputs)}
        return arrays, extents | {"columns": pages.shape[1]}, first_rows

    def _fill_chunk(
        self,
        scheduled: ScheduledSequence,
        decodes: int,
        number: int,
        tokens: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        counts: np.ndarray,
        lengths: np.ndarray,
        pages: np.ndarray,
    ) -> int:
        """Fill the blocks of a chunk, from block `number` on; return how many there are."""
        block, count = self.buckets.row_block, len(scheduled.tokens)
        num_blocks = -(-count // block)
        first = decodes + number * block
        span = np.arange(scheduled.position, scheduled.position + count, dtype=np.int32)
        table = np.asarray(scheduled.page_table, np.int32)[: pages.shape[1]]
        tokens[first : first + count] = scheduled.tokens
        positions[first : first + count] = span
        slots[first : first + count] = table[span // PAGE] * PAGE + span % PAGE
        ends = np.minimum(np.arange(1, num_blocks + 1) * block, count)
        blocks = slice(decodes + number, decodes + number + num_blocks)
        counts[blocks] = np.diff(ends, prepend=0)
        lengths[blocks] = scheduled.position + ends
        pages[blocks, : len(table)] = table
        return num_blocks


def output_rows(step: Step, first_rows: Sequence[int]) -> list[int]:
    """Return the rows of a step's outputs, in order."""
    rows: list[int] = []
    for each, first in zip(step.sequences, first_rows, strict=True):
        end = first + len(each.tokens)
        rows.extend(range(end - each.num_outputs, end))
    return rows


def limit_bucket(bucket: Sequence[int], limit: int) -> tuple[int, ...]:
    """Return the numbers of a bucket below `limit`, and then `limit`."""
    return (*(number for number in bucket if number < limit), limit)


def round_up(bucket: Sequence[int], number: int) -> int:
    """Return the least number of a bucket that is not below `number`."""
    return bucket[bisect_left(bucket, number)]
