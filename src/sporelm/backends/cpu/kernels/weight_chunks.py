"""Chunks of k of a few panels, unpacked to the nearest cache for many tokens. One class per kind of format.

`step` units (columns, groups) form a chunk; a unit of a row of activations takes `row_bytes`.
"""

from functools import partial
from typing import Any

from sporelm.backends.cpu.formats.activation_records import RECORD, SUPER_RECORD, WIDE_RECORD
from sporelm.backends.cpu.formats.f32 import F32Panels
from sporelm.backends.cpu.formats.panels import Block, BlockPanels, FloatPanels, SuperBlock, SuperPanels
from sporelm.backends.cpu.formats.scaled_floats import ScaledPanels
from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.kernels.panel_products import (
    PanelSums,
    add_block,
    add_columns,
    add_run,
    biases_runs,
    finish_super_block,
    keeps_sums,
    run_bias,
    widen_row,
    widen_words,
)
from sporelm.backends.cpu.targets.tiles import Tiles

BLOCKS_PER_CHUNK = 8  # blocks of 32 columns in a chunk
COLUMNS_PER_CHUNK = 128  # columns of a float format


def make_chunk(
    kind: Any, tiles: Tiles
) -> "FloatChunk | ScaledFloatChunk | BlockChunk | WideBlockChunk | SuperBlockChunk":
    """Return the chunk class of a format."""
    panels, tokens = tiles.many_of(kind)
    if isinstance(kind, FloatPanels):
        return FloatChunk(kind, panels, tokens)
    if isinstance(kind, ScaledPanels):
        return ScaledFloatChunk(kind, panels, tokens)
    if isinstance(kind, SuperPanels):
        return SuperBlockChunk(kind, panels, tokens)
    return (WideBlockChunk if kind.name in tiles.wide else BlockChunk)(kind, panels, tokens)


class _WeightChunk:
    """A tile of `panels` panels by `tokens` tokens. `vector` and `row` are bytes of one vector, and of one per panel.

    `widened_bytes` are those of a row of activations for one chunk that `widen` writes, 0 if rows are read in place.
    """

    widened_bytes = 0

    step: int

    def __init__(self, kind: Any, panels: int, tokens: int) -> None:
        self.kind, self.panels, self.tokens = kind, panels, tokens
        self.vector = 4 * kind.lanes
        self.row = panels * self.vector
        self.keeps_sums = keeps_sums(kind, panels, tokens)

    def chunk_step(self, k: Builder, total: Val) -> int | Val:
        """Return the units of a chunk, at most `step`, given those of a row.

        Chunks are equal where sums are in memory, as a small last chunk would cost nearly as much as a whole one.
        Elsewhere LLVM would spill for the loop's variable step.
        """
        if self.keeps_sums:
            return self.step
        chunks = (total + (self.step - 1)) // self.step
        return (total + (chunks - 1)) // chunks

    def widen(self, k: Builder, row: Val, count: Val, out: Val) -> None:
        """Write `count` units of a row of activations as `add` takes them."""
        raise NotImplementedError(f"{type(self).__name__} does not implement widen")

    def put(self, k: Builder, value: Val, base: Val, offset: int | Val = 0) -> None:
        k.store(value, base, offset, align=self.vector)

    def get(self, k: Builder, kind: Any, base: Val, offset: int | Val = 0) -> Val:
        return k.load(kind, base, offset, align=self.vector)


class FloatChunk(_WeightChunk):
    """Columns of a float format, widened to f32."""

    kind: FloatPanels
    step, row_bytes = COLUMNS_PER_CHUNK, 4

    @property
    def nbytes(self) -> int:
        return COLUMNS_PER_CHUNK * self.row

    def units(self, width: Val) -> Val:
        return width

    def unpack(self, k: Builder, panels: list[Val], unit: Val, chunk: Val, at: Val) -> None:
        for p, panel in enumerate(panels):
            value = self.kind.column(k, panel, unit * self.kind.group_bytes)
            self.put(k, value, chunk, at * self.row + p * self.vector)

    def add(self, k: Builder, held: PanelSums, chunk: Val, rows: list[Val], count: Val) -> None:
        panels = [k.at(chunk, p * self.vector) for p in range(self.panels)]
        add_columns(k, _WidenedPanels(self.kind.target, self.row), held, panels, rows, count)


class ScaledFloatChunk(_WeightChunk):
    """Columns of groups with a scale, widened to f32 and scaled."""

    kind: ScaledPanels

    def __init__(self, kind: ScaledPanels, panels: int, tokens: int) -> None:
        super().__init__(kind, panels, tokens)
        self.step, self.row_bytes = COLUMNS_PER_CHUNK // kind.k_step, 4 * kind.k_step

    @property
    def nbytes(self) -> int:
        return COLUMNS_PER_CHUNK * self.row

    def units(self, width: Val) -> Val:
        return width // self.kind.k_step

    def unpack(self, k: Builder, panels: list[Val], unit: Val, chunk: Val, at: Val) -> None:
        for p, panel in enumerate(panels):
            here, place = k.at(panel, unit * self.kind.group_bytes), k.at(chunk, at * (self.kind.k_step * self.row))
            scale = self.kind.scale(k, here)
            with k.range(self.kind.k_step) as column:
                value = self.kind.column(k, here, column, scale)
                self.put(k, value, place, column * self.row + p * self.vector)

    def add(self, k: Builder, held: PanelSums, chunk: Val, rows: list[Val], count: Val) -> None:
        panels = [k.at(chunk, p * self.vector) for p in range(self.panels)]
        add_columns(k, _WidenedPanels(self.kind.target, self.row), held, panels, rows, count * self.kind.k_step)


class _WidenedPanels(F32Panels):
    """Panels of a chunk that was widened to f32, all panels of a column side by side."""

    def __init__(self, target: Any, row: int) -> None:
        super().__init__(target)
        self.row = row

    @property
    def group_bytes(self) -> int:
        return self.row


class BlockChunk(_WeightChunk):
    """Blocks of 32: [block][panel][8 words], then [block][part][panel] scales, then all offsets."""

    kind: BlockPanels
    vectors = 8  # of a block

    def __init__(self, kind: BlockPanels, panels: int, tokens: int) -> None:
        super().__init__(kind, panels, tokens)
        self.step, self.row_bytes = BLOCKS_PER_CHUNK // kind.blocks, RECORD * kind.blocks
        self.scales = BLOCKS_PER_CHUNK * self.vectors * self.row
        self.offsets = self.scales + BLOCKS_PER_CHUNK * kind.parts * self.row

    @property
    def nbytes(self) -> int:
        return self.offsets + BLOCKS_PER_CHUNK * self.row

    def units(self, width: Val) -> Val:
        return (width + (self.kind.k_step - 1)) // self.kind.k_step

    def unpack(self, k: Builder, panels: list[Val], unit: Val, chunk: Val, at: Val) -> None:
        for p, panel in enumerate(panels):
            here = k.at(panel, unit * self.kind.group_bytes)
            for line in range(0, self.kind.group_bytes, 64):
                k.prefetch(here, self.step * self.kind.group_bytes + line, 2)
            for b in range(self.kind.blocks):
                self._unpack(k, self.kind.block(k, here, b), k.at(chunk, p * self.vector), at * self.kind.blocks + b, p)

    def _unpack(self, k: Builder, block: Block, column: Val, at: Val, p: int) -> None:
        for w in range(8):
            self._put_word(k, block.word(w), column, at, p, w)
        for part in range(self.kind.parts):
            self.put(k, block.scale(part), column, (at * self.kind.parts + part) * self.row + self.scales)
        if block.offset is not None:
            self.put(k, block.offset(), column, at * self.row + self.offsets)

    def _put_word(self, k: Builder, word: Val, column: Val, at: Val, p: int, w: int) -> None:
        """Store word `w` of block `at` of panel `p`; `column` is the address of the panel's first word."""
        self.put(k, word, column, at * (8 * self.row) + (7 * p + w) * self.vector)

    def _word_at(self, p: int, w: int) -> int:
        return (8 * p + w) * self.vector

    def _unpacked(self, k: Builder, chunk: Val, index: Val) -> list[Block]:
        """Return block `index` of each panel."""
        vectors = self.vectors
        words = k.opaque(k.at(chunk, index * (vectors * self.row)))
        factors = k.opaque(k.at(chunk, index * (self.kind.parts * self.row) + self.scales))

        def block(p: int) -> Block:
            at = p * self.vector
            return Block(
                lambda w: self.get(k, k.vi, words, self._word_at(p, w)),
                lambda part: self.get(k, k.vf, factors, at + part * self.row),
                (lambda: self.get(k, k.vf, factors, at + self.offsets - self.scales)) if self.kind.has_offset else None,
                k.at(words, vectors * p * self.vector),
            )

        return [block(p) for p in range(self.panels)]

    def add(self, k: Builder, held: PanelSums, chunk: Val, rows: list[Val], count: Val) -> None:
        with k.range(count * self.kind.blocks) as index:
            records = [k.opaque(k.at(row, index * RECORD)) for row in rows]
            add_block(k, self.kind, held, self._unpacked(k, chunk, index), records)


class WideBlockChunk(BlockChunk):
    """Blocks of 32 columns widened to 16 bits, as are the activations: [block][16 words][panel], scales, offsets.

    AVX2 multiplies and adds pairs of 16 bits in one instruction, and weights of eight bits in three.
    """

    vectors = 16
    widened_bytes = BLOCKS_PER_CHUNK * WIDE_RECORD

    def _put_word(self, k: Builder, word: Val, column: Val, at: Val, p: int, w: int) -> None:
        widened = widen_words(self.kind, lambda number: word)
        for half in range(2):
            self.put(k, widened(w + 8 * half), column, at * (16 * self.row) + (2 * w + half) * self.row)

    def _word_at(self, p: int, w: int) -> int:
        return (2 * w if w < 8 else 2 * w - 15) * self.row + p * self.vector

    def widen(self, k: Builder, row: Val, count: Val, out: Val) -> None:
        widen_row(k, row, count * self.kind.blocks, out)

    def add(self, k: Builder, held: PanelSums, chunk: Val, rows: list[Val], count: Val) -> None:
        with k.range(count * self.kind.blocks) as index:
            records = [k.opaque(k.at(row, index * WIDE_RECORD)) for row in rows]
            add_block(k, self.kind, held, self._unpacked(k, chunk, index), records, is_wide=True)


class SuperBlockChunk(_WeightChunk):
    """One super-block: [run][panel][words], [run][panel] scales, [pair][panel], factors and pair factors."""

    kind: SuperPanels
    step, row_bytes = 1, SUPER_RECORD

    def __init__(self, kind: SuperPanels, panels: int, tokens: int) -> None:
        super().__init__(kind.for_many(), panels, tokens)
        self.words, self.is_biased = self.kind.words, biases_runs(self.kind)
        self.scales = 64 * self.row
        self.pairs = self.scales + (kind.runs * self.row if self.kind.scaled else 0)
        self.factors = self.pairs + (0 if self.is_biased else kind.runs // 2 * self.row)

    @property
    def nbytes(self) -> int:
        return self.factors + 2 * self.row

    def units(self, width: Val) -> Val:
        return (width + 255) // 256

    def unpack(self, k: Builder, panels: list[Val], unit: Val, chunk: Val, at: Val) -> None:
        for p, panel in enumerate(panels):
            here, column = k.at(panel, unit * self.kind.group_bytes), k.at(chunk, p * self.vector)
            for line in range(0, self.kind.group_bytes, 64):
                k.prefetch(here, self.kind.group_bytes + line, 2)
            for run in range(64 // self.words):
                block = self.kind.super_block(k, k.opaque(here))  # data that runs share is not kept in registers
                for w in range(self.words):
                    place = run * self.words * self.row + (p * (self.words - 1) + w) * self.vector
                    self.put(k, block.word(run * self.words + w), column, place)
                if block.scale is not None:
                    scale = k.target.prepare_scale(k, block.scale(run))
                    self.put(k, scale, column, self.scales + run * self.row)
            for number in range(0 if self.is_biased else self.kind.runs // 2):
                self.put(k, block.pair(number), column, self.pairs + number * self.row)
            self.put(k, block.factor(), column, self.factors)
            if block.pair_factor is not None:
                self.put(k, block.pair_factor(), column, self.factors + self.row)

    def add(self, k: Builder, held: PanelSums, chunk: Val, rows: list[Val], count: Val) -> None:
        """Multiply run by run in a loop: unrolled, a tile of panels by tokens would not fit the cache of decoded
        instructions."""
        totals = [[k.zero(k.vi) for _ in range(self.panels)] for _ in rows]
        turn = k.target.runs_per_turn
        with k.range(64 // (turn * self.words)) as number:
            words = k.opaque(k.at(chunk, number * (turn * self.words * self.row)))
            scales = k.at(chunk, number * (turn * self.row) + self.scales)
            x = [k.opaque(k.at(row, number * (4 * turn * self.words))) for row in rows]
            for run in range(turn):
                bias = partial(run_bias, k, self.kind, run=number * turn + run)
                self._add_run(k, totals, words, scales, x, run, [bias(row) for row in rows] if self.is_biased else [])
        rest = [self._rest(k, chunk, p) for p in range(self.panels)]
        finish_super_block(k, self.kind, held, totals, rest, rows, is_biased=self.is_biased)

    def _add_run(
        self, k: Builder, totals: PanelSums, words: Val, scales: Val, x: list[Val], run: int, biases: list[Val]
    ) -> None:
        """Add run `run` of those at the addresses of words, scales and activations to the totals."""
        starts = [k.at(words, (run * self.panels + p) * self.words * self.vector) for p in range(self.panels)]

        def scale(p: int) -> Val:
            return self.get(k, k.vi, scales, run * self.row + p * self.vector)

        add_run(
            k,
            self.kind,
            totals,
            lambda n: [self.get(k, k.vi, start, n * self.vector) for start in starts],
            [partial(scale, p) for p in range(self.panels)] if self.kind.scaled else [],
            [k.at(row, 4 * self.words * run) for row in x],
            starts,
            biases,
        )

    def _rest(self, k: Builder, chunk: Val, p: int) -> SuperBlock:
        """Return the data of a panel's super-block after its runs."""
        at = p * self.vector

        def vector(kind: Any, offset: int) -> Val:
            return self.get(k, kind, chunk, at + offset)

        minima = (lambda: vector(k.vf, self.factors + self.row)) if self.kind.has_minima else None
        return SuperBlock(
            lambda number: vector(k.vi, number),
            lambda run: vector(k.vi, self.scales + run * self.row),
            lambda number: vector(k.vi, self.pairs + number * self.row),
            lambda: vector(k.vf, self.factors),
            minima,
        )
