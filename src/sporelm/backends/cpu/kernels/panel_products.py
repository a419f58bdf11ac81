"""The inner loops of every product: panels of weights times rows of activations, reduced in order of k.

Each result is one chain of fused multiply-adds over k (or over blocks of 32 or 256), in every kernel and tile, so that
a row's result depends only on itself. Within a block sums are integers, exact in any order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sporelm.backends.cpu.formats.activation_records import (
    RECORD,
    SUPER_RECORD,
    SUPER_SCALE,
    SUPER_SUMS_16,
    SUPER_SUMS_32,
    WIDE_ODD,
    WIDE_RECORD,
    X_BIAS,
    X_BIAS_FIRST,
    X_SCALE,
    X_SCALED_SUM,
)
from sporelm.backends.cpu.formats.panels import Block, BlockPanels, FloatPanels, SuperBlock, SuperPanels, Vector
from sporelm.backends.cpu.formats.scaled_floats import ScaledPanels
from sporelm.backends.cpu.jit import Builder, StoredVector, Val, Var, i8, i16, i32, vec
from sporelm.backends.cpu.targets.cpu_target import SIGNED, Totals, Words
from sporelm.backends.cpu.targets.tiles import registers

PrefetchPart = Callable[[int, int], None]  # prefetches part n of m of the memory that is read later
PanelSums = Sequence[Sequence[Var | StoredVector]]  # [token][panel], f32 or i32 vectors


class Prefetch(NamedTuple):
    """Where to prefetch: `near` bytes ahead in this panel and, past its end, in the panel read next, which is
    `following` bytes away. No prefetch if `near` is 0."""

    following: Val
    near: int


def zeros(k: Builder, tokens: int, panels: int) -> PanelSums:
    return [[k.zero(k.vf) for _ in range(panels)] for _ in range(tokens)]


def keeps_sums(kind: Any, panels: int, tokens: int) -> bool:
    """Return whether the registers hold a tile's sums beside a block's integers of each."""
    return not isinstance(kind, BlockPanels) or (2 * tokens + 1) * panels <= registers(kind.target)


def add_block(
    k: Builder, kind: BlockPanels, sums: PanelSums, blocks: list[Block], records: list[Val], *, is_wide: bool = False
) -> None:
    """Add one block of 32 columns of each panel times each token's record to the sums.

    With `is_wide` records and blocks are of 16 bits; word n of a block is the pair of bytes 0 and 2 of its word n, and
    word 8 + n that of bytes 1 and 3.
    """
    multiply = _wide_block_product if is_wide else _block_product
    tokens, panels = range(len(sums)), range(len(blocks))
    in_memory = isinstance(sums[0][0], StoredVector)  # then they are read and written once, in the same order
    for p in panels:
        if not in_memory or kind.parts == 2:
            _add_offset(k, blocks[p], [row[p] for row in sums], records)
    if kind.parts == 2:
        _add_halves(k, sums, blocks, records, [partial(multiply, k, kind, blocks, records, part) for part in range(2)])
        return
    dots = multiply(k, kind, blocks, records, 0)
    factors = [k.broadcast(k.vf, record, X_SCALE) for record in records] if in_memory else []
    for p in panels:
        held = [k.var(row[p].value) if in_memory else row[p] for row in sums]
        if in_memory:
            _add_offset(k, blocks[p], held, records)
        scale = blocks[p].scale(0)
        for t in tokens:
            factor = factors[t] if in_memory else k.broadcast(k.vf, records[t], X_SCALE)
            scaled = dots[t][p].to_float() * factor
            sums[t][p].set(k.fma(scaled, scale, held[t].value))


def _add_offset(k: Builder, block: Block, sums: Sequence[Var | StoredVector], records: list[Val]) -> None:
    """Add a block's offset, if it has one, times each token's sum of values to that token's sum."""
    if block.offset is not None:
        offset = block.offset()
        for total, record in zip(sums, records, strict=True):
            total.set(k.fma(offset, k.broadcast(k.vf, record, X_SCALED_SUM), total.value))


def _add_halves(
    k: Builder, sums: PanelSums, blocks: list[Block], records: list[Val], products: list[Callable[[], Totals]]
) -> None:
    """Add blocks whose halves have their own scales, given the products of each half: both are summed, then multiplied
    by the token's."""
    tokens, panels = range(len(sums)), range(len(blocks))
    dots = products[0]()
    scales = [block.scale(0) for block in blocks]
    first = [[dots[t][p].to_float() * scales[p] for p in panels] for t in tokens]
    dots = products[1]()
    for p in panels:
        scale = blocks[p].scale(1)
        for t in tokens:
            both = k.fma(dots[t][p].to_float(), scale, first[t][p])
            sums[t][p].set(k.fma(both, k.broadcast(k.vf, records[t], X_SCALE), sums[t][p].value))


def _block_product(k: Builder, kind: BlockPanels, blocks: list[Block], records: list[Val], part: int) -> Totals:
    """Return [token][panel]: products of the integers of one part of a block."""
    count = 8 // kind.parts
    first = count * part
    zeros_first = k.target.adds_accumulator_last and kind.zero != 0
    none = k.const(k.vi, 0)
    starts = [[none if zeros_first else _zero_point_bias(k, kind, record, part)] * len(blocks) for record in records]
    x = [k.at(record, 4 * first) for record in records]
    stored = [k.at(block.stored, 4 * k.lanes * first) for block in blocks if block.stored is not None]
    dots = _dot_product(k, lambda n: [b.word(first + n) for b in blocks], count, x, starts, kind.largest, stored)
    if not zeros_first:
        return dots
    biases = [_zero_point_bias(k, kind, record, part) for record in records]
    return [[dot + bias for dot in row] for row, bias in zip(dots, biases, strict=True)]


def _wide_block_product(k: Builder, kind: BlockPanels, blocks: list[Block], records: list[Val], part: int) -> Totals:
    """Return the same, of pairs of 16 bits."""
    count = 8 // kind.parts
    totals = [[_zero_point_bias(k, kind, record, part)] * len(blocks) for record in records]
    for number in range(count * part, count * (part + 1)):
        for word, place in ((number, 4 * number), (8 + number, WIDE_ODD + 4 * number)):
            weights = [block.word(word) for block in blocks]
            for t, record in enumerate(records):
                x = k.broadcast(k.vi, record, place)
                totals[t] = [k.target.dot_pairs(k, *both, x) for both in zip(totals[t], weights, strict=True)]
            totals = k.pin(totals)  # or LLVM would add pairs of products first, in registers that the totals need
    return totals


def widen_words(kind: BlockPanels, word: Callable[[int], Val]) -> Callable[[int], Val]:
    """Return the words of a block widened to 16 bits, given its words: see `add_block`."""
    words: dict[int, Val] = {}

    def widened(number: int) -> Val:
        place = number % 8
        if place not in words:
            words[place] = word(place)
        halves = words[place].bits(vec(i16, 2 * kind.lanes))
        if kind.largest == SIGNED:
            pair = halves.arithmetic_shift(8) if number > 7 else (halves << 8).arithmetic_shift(8)
        else:
            pair = halves >> 8 if number > 7 else halves & 0xFF
        return pair.bits(words[place].type)

    return widened


def widen_row(k: Builder, row: Val, count: Val, out: Val) -> None:
    """Widen `count` records of a row of activations to 16 bits."""
    halves = vec(i16, 16)
    with k.range(count) as index:
        record, wide = k.at(row, index * RECORD), k.at(out, index * WIDE_RECORD)
        both = k.load(halves, record)
        k.store((both << 8).arithmetic_shift(8), wide, align=16)
        k.store(k.load(vec(i8, 16), record, X_SCALE), wide, X_SCALE, align=16)
        k.store(both.arithmetic_shift(8), wide, WIDE_ODD, align=16)


def _dot_product(
    k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int, stored: Sequence[Val]
) -> Totals:
    """Return the target's dot products; `stored` gives the address of each panel's words if they are contiguous."""
    if stored:
        return k.target.multiply_stored(k, words, stored, count, x, totals, largest)
    return k.target.multiply(k, words, count, x, totals, largest)


def _zero_point_bias(k: Builder, kind: BlockPanels, record: Val, part: int) -> Val:
    """Return -zero * the sum of the integers of a record's part: the contribution of the bytes that stand for 0."""
    if kind.zero == 0:
        return k.const(k.vi, 0)
    bias = k.broadcast(k.vi, record, X_BIAS if part == kind.parts - 1 else X_BIAS_FIRST)
    if part == 1:
        bias = bias - k.broadcast(k.vi, record, X_BIAS_FIRST)
    return bias.arithmetic_shift(3) if kind.zero == 1 else bias << {8: 0, 16: 1, 128: 4}[kind.zero]


def add_super_block(
    k: Builder, kind: SuperPanels, sums: PanelSums, starts: list[Val], records: list[Val], fetch: PrefetchPart
) -> None:
    """Add the super-block at each of `starts` times each token's record to the sums; `fetch` prefetches a part
    before each run."""
    totals = [[k.zero(k.vi) for _ in starts] for _ in records]
    count = kind.words
    blocks = [kind.super_block(k, start) for start in starts]
    for run in range(64 // count):
        fetch(run, 64 // count)
        k.keep_order()  # or LLVM would load the data of later runs early, into registers that the tokens need
        words = partial(_words, blocks, count * run)
        scales = [partial(_prepared_scale, k, block, run) for block in blocks] if kind.scaled else []
        add_run(k, kind, totals, words, scales, [k.at(record, 4 * count * run) for record in records])
    finish_super_block(k, kind, sums, totals, blocks, records)


def _words(blocks: list[SuperBlock], first: int, number: int) -> list[Val]:
    return [block.word(first + number) for block in blocks]


def _prepared_scale(k: Builder, block: SuperBlock, run: int) -> Val:
    assert block.scale is not None
    return k.target.prepare_scale(k, block.scale(run))


def add_run(
    k: Builder,
    kind: SuperPanels,
    totals: PanelSums,
    words: Words,
    scales: Sequence[Vector],
    x: list[Val],
    stored: Sequence[Val] = (),
    biases: Sequence[Val] = (),
) -> None:
    """Add one run's words of each panel times each token's bytes at `x`, times the run's prepared scales, if there are
    any, to the totals; all i32. `biases` as in `CpuTarget.multiply_scaled`."""
    starts = [[total.value for total in row] for row in totals]
    if scales:
        sums = k.target.multiply_scaled(k, words, stored, kind.words, x, starts, kind.largest, scales, biases)
    else:
        sums = _dot_product(k, words, kind.words, x, starts, kind.largest, stored)
    for row, values in zip(totals, sums, strict=True):
        for total, value in zip(row, values, strict=True):
            total.set(value)


def biases_runs(kind: SuperPanels) -> bool:
    """Return whether the many-token kernel subtracts the byte that stands for 0 within each run's products.

    The few-token kernel does so once a super-block, by the sums of two runs at once: the same integers.
    """
    return kind.target.has_wide_dots and kind.scaled and kind.middle > 0 and not kind.has_minima


def run_bias(k: Builder, kind: SuperPanels, record: Val, run: Val) -> Val:
    """Return -middle * the sum of the integers of a record's run (i64), an i32 vector."""
    total = k.load(i16, record, run * 2 + _first_sum(kind)).sext(i32)
    return k.splat(total * -kind.middle)


def _first_sum(kind: SuperPanels) -> int:
    """Return the offset in a record of the sums of runs."""
    return SUPER_SUMS_16 if kind.runs == 16 else SUPER_SUMS_32


def finish_super_block(
    k: Builder,
    kind: SuperPanels,
    sums: PanelSums,
    totals: PanelSums,
    blocks: list[SuperBlock],
    records: list[Val],
    *,
    is_biased: bool = False,
) -> None:
    """Add a super-block to the sums, given its runs' totals: the part of the pairs, and the factors.

    `is_biased`: the byte that stands for 0 is subtracted from the totals already, so the pairs add nothing.
    """
    tokens, panels = range(len(sums)), range(len(blocks))
    pairs = [[k.const(k.vi, 0)] * len(blocks) for _ in tokens]
    first = _first_sum(kind)
    middle = 0 if is_biased else kind.middle
    for number in range(kind.runs // 2 if kind.has_minima or middle else 0):
        values = [block.pair(number) for block in blocks]
        for t in tokens:
            both = k.broadcast(k.vi, records[t], first + 4 * number)
            for p in panels:
                pairs[t][p] = k.target.dot_pairs(k, pairs[t][p], values[p], both)
    for p in panels:
        factor, make_pair_factor = blocks[p].factor(), blocks[p].pair_factor
        pair_factor = make_pair_factor() if make_pair_factor is not None else None
        for t in tokens:
            scale = k.broadcast(k.vf, records[t], SUPER_SCALE)
            total, held = totals[t][p].value, sums[t][p].value
            if pair_factor is None:
                total = total - pairs[t][p] * middle if middle else total
            else:
                held = k.fma(pairs[t][p].to_float() * scale, pair_factor, held)
            sums[t][p].set(k.fma(total.to_float() * scale, factor, held))


def dot_panels(
    k: Builder,
    kind: Any,
    panels: list[Val],
    rows: list[Val],
    width: Val,
    ahead: int | Val | Prefetch = 0,
    *,
    is_wide: bool = False,
) -> PanelSums:
    """Multiply each row by each whole panel. `width` counts columns; data `ahead` bytes on is prefetched.

    With `is_wide` rows are of 16 bits, as `widen_row` writes them, and so are the products.
    """
    sums = zeros(k, len(rows), len(panels))
    if isinstance(kind, FloatPanels):
        add_columns(k, kind, sums, panels, rows, width)
        return sums
    if isinstance(kind, ScaledPanels):
        add_scaled(k, kind, sums, panels, rows, width)
        return sums
    block_record = WIDE_RECORD if is_wide else RECORD
    record = SUPER_RECORD if isinstance(kind, SuperPanels) else block_record * kind.blocks
    if isinstance(ahead, Prefetch) and not ahead.near:
        ahead = 0
    lines = range(0, kind.group_bytes if not isinstance(ahead, int) or ahead else 0, 64)
    groups = (width + (kind.k_step - 1)) // kind.k_step
    with k.range(groups) as group:
        here = [k.at(panel, group * kind.group_bytes) for panel in panels]
        records = [k.opaque(k.at(row, group * record)) for row in rows]
        if isinstance(ahead, Prefetch):
            near = k.index(-(-ahead.near // kind.group_bytes))
            there = group - groups + (k.min(groups, near) if isinstance(kind, SuperPanels) else near)
            place = k.select(there < 0, there + groups, there) * kind.group_bytes
            later = [k.at(panel, place + k.select(there < 0, k.index(0), ahead.following)) for panel in panels]
        else:
            later = [k.at(start, ahead) for start in here]

        def fetch(part: int, parts: int) -> None:
            for line in lines[part * len(lines) // parts : (part + 1) * len(lines) // parts]:
                for start in later:
                    k.prefetch(start, line)

        if isinstance(kind, SuperPanels):
            add_super_block(k, kind, sums, here, records, fetch)
        else:
            for index in range(kind.blocks):
                fetch(index, kind.blocks)
                blocks = [kind.block(k, start, index) for start in here]
                if is_wide:
                    blocks = [block._replace(word=widen_words(kind, block.word)) for block in blocks]
                add_block(k, kind, sums, blocks, [k.at(r, block_record * index) for r in records], is_wide=is_wide)
    return sums


def add_columns(k: Builder, kind: FloatPanels, sums: PanelSums, panels: list[Val], rows: list[Val], width: Val) -> None:
    """Add columns 0..width of float panels times rows of f32 to the sums, four columns per iteration."""
    whole = (width >> 2) << 2
    step = kind.group_bytes
    with k.range(0, whole, 4) as column:
        here = [k.opaque(k.at(panel, column * step)) for panel in panels]
        there = [k.opaque(k.at(row, column * 4)) for row in rows]
        for unrolled in range(4):
            _add_column(k, kind, sums, here, there, unrolled)
    with k.range(whole, width) as column:
        here = [k.at(panel, column * step) for panel in panels]
        _add_column(k, kind, sums, here, [k.at(row, column * 4) for row in rows], 0)


def _add_column(
    k: Builder, kind: FloatPanels, sums: PanelSums, panels: list[Val], rows: list[Val], column: int
) -> None:
    weights = [kind.column(k, panel, column * kind.group_bytes) for panel in panels]
    _add_products(k, sums, weights, rows, column)


def add_scaled(k: Builder, kind: ScaledPanels, sums: PanelSums, panels: list[Val], rows: list[Val], width: Val) -> None:
    """Add all groups of panels times rows of f32 to the sums, four columns per iteration; each weight is scaled, then
    multiplied."""
    with k.range(width // kind.k_step) as group:
        here = [k.at(panel, group * kind.group_bytes) for panel in panels]
        scales = [kind.scale(k, start) for start in here]
        with k.range(0, kind.columns, 4) as column:
            there = [k.opaque(k.at(row, (group * kind.k_step + column) * 4)) for row in rows]
            for unrolled in range(4):
                pairs = zip(here, scales, strict=True)
                weights = [kind.column(k, start, column + unrolled, scale) for start, scale in pairs]
                _add_products(k, sums, weights, there, unrolled)


def _add_products(k: Builder, sums: PanelSums, weights: list[Val], rows: list[Val], column: int) -> None:
    """Add one column of each panel times a column of each row to the sums."""
    for t, row in enumerate(rows):
        x = k.broadcast(k.vf, row, 4 * column)
        for p, weight in enumerate(weights):
            sums[t][p].set(k.fma(x, weight, sums[t][p].value))


def silu_mul(k: Builder, gate: Val, up: Val) -> Val:
    """Return silu(gate) * up."""
    return gate / (k.exp(-gate) + 1.0) * up
