"""The inputs of a step padded to buckets, for devices that replay few shapes, as with CUDA graphs (ADR 0045)."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sporelm.backends.protocol import InputBuckets
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.step import ScheduledSequence, Step, vocabulary_ids
from sporelm.errors import BackendError
from sporelm.ops.paged_attention import PAGE

Extents = dict[str, int]


class PaddedArrays(NamedTuple):
    """The arrays of a step: one number for each row (tokens, positions, slots) or sequence (the others)."""

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    lengths: np.ndarray
    pages: np.ndarray  # a row for each sequence
    states: np.ndarray
    counts: np.ndarray  # real rows

    @classmethod
    def padding(
        cls, decodes: int, blocks: int, row_block: int, columns: int, dump_page: int, dump_state: int
    ) -> "PaddedArrays":
        """Return arrays in which every row and sequence is a padded one."""
        num_rows, num_sequences = decodes + blocks * row_block, decodes + blocks
        return cls(
            tokens=np.zeros(num_rows, np.int32),
            positions=np.zeros(num_rows, np.int32),
            slots=np.full(num_rows, dump_page * PAGE, np.int32),
            lengths=np.ones(num_sequences, np.int32),
            pages=np.full((num_sequences, columns), dump_page, np.int32),
            states=np.full(num_sequences, dump_state, np.int32),
            counts=np.ones(num_sequences, np.int32),
        )


class PaddedInputs:
    """The int32 arrays of a step.

    Rows of sequences with one row come first. Longer chunks follow, cut into blocks of `row_block` rows, each block a
    sequence with the same pages and recurrent state. So the place of each row follows from the shapes; `starts` has the
    sums of the real rows. Numbers of rows, blocks, pages and outputs are padded to buckets. A padded row has token 0 at
    position 0, and writes to the dump page, which no sequence has; a padded sequence has one position there, and the
    dump state.
    """

    def __init__(self, limits: EngineConfig, buckets: InputBuckets) -> None:
        self.buckets, self.dump_page, self.dump_state = buckets, limits.num_pages, limits.num_states
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
        longest = max(each.position + len(each.tokens) for each in step.sequences)
        columns = round_up(self.columns, count_pages(longest))
        padded = PaddedArrays.padding(decodes, blocks, block, columns, self.dump_page, self.dump_state)
        tokens, positions, slots, lengths, pages, states, _ = padded
        first_rows = [0] * len(step.sequences)
        for row, index in enumerate(singles):
            _, ids, position, page_table, _, _, state_slot, *_ = step.sequences[index]
            first_rows[index] = row
            tokens[row], positions[row], lengths[row] = ids[0], position, position + 1
            slots[row] = page_table[position // PAGE] * PAGE + position % PAGE
            count = min(len(page_table), columns)
            pages[row, :count] = page_table[:count]
            states[row] = state_slot
        number = 0
        for index in chunks:
            each = step.sequences[index]
            first_rows[index] = decodes + number * block
            number += self._fill_chunk(padded, each, decodes, number)
        return *self._list_arrays(padded, output_rows(step, first_rows)), first_rows

    def iterate_warmup_inputs(self) -> Iterator[tuple[dict[str, np.ndarray], Extents]]:
        """Yield the arrays and extents of warm-up steps, whose rows are all padding.

        They are decode steps for each bucket of rows and of pages, and one chunk for each bucket of blocks. The largest
        come first, so that smaller ones reuse their memory.
        """
        shapes = [(0, blocks, count_pages(blocks * self.buckets.row_block)) for blocks in self.blocks if blocks]
        shapes += [(decodes, 0, columns) for columns in self.columns for decodes in self.decodes if decodes]
        shapes.sort(key=lambda shape: (shape[0] + shape[1] * self.buckets.row_block, shape[2]), reverse=True)
        for decodes, blocks, num_pages in shapes:
            columns = round_up(self.columns, min(num_pages, self.columns[-1]))
            padded = PaddedArrays.padding(
                decodes, blocks, self.buckets.row_block, columns, self.dump_page, self.dump_state
            )
            yield self._list_arrays(padded, range(max(1, decodes)))

    def _list_arrays(self, padded: PaddedArrays, rows: Sequence[int]) -> tuple[dict[str, np.ndarray], Extents]:
        """Return the arrays of a step with these output rows by name, and its extents by symbol."""
        outputs = np.zeros(round_up(self.outputs, max(1, len(rows))), np.int32)
        outputs[: len(rows)] = rows
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(padded.counts, dtype=np.int32)])
        arrays = {name: array for name, array in padded._asdict().items() if name != "counts"}
        arrays |= {"starts": starts, "rows": outputs}
        extents = {"tokens": len(padded.tokens), "sequences": len(padded.lengths), "starts": len(starts)}
        return arrays, extents | {"rows": len(outputs), "columns": padded.pages.shape[1]}

    def _fill_chunk(self, padded: PaddedArrays, scheduled: ScheduledSequence, decodes: int, number: int) -> int:
        """Fill the blocks of a chunk, from block `number` on; return how many there are."""
        block, count = self.buckets.row_block, len(scheduled.tokens)
        num_blocks = -(-count // block)
        first = decodes + number * block
        span = np.arange(scheduled.position, scheduled.position + count, dtype=np.int32)
        table = np.asarray(scheduled.page_table, np.int32)[: padded.pages.shape[1]]
        padded.tokens[first : first + count] = vocabulary_ids(scheduled)
        padded.positions[first : first + count] = span
        padded.slots[first : first + count] = table[span // PAGE] * PAGE + span % PAGE
        ends = np.minimum(np.arange(1, num_blocks + 1) * block, count)
        blocks = slice(decodes + number, decodes + number + num_blocks)
        padded.counts[blocks] = np.diff(ends, prepend=0)
        padded.lengths[blocks] = scheduled.position + ends
        padded.pages[blocks, : len(table)] = table
        padded.states[blocks] = scheduled.state_slot
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
