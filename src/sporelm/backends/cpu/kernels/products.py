"""The inner loops of every product: panels of weights times rows of activations, reduced in order of k.

Each result is one chain of fused multiply-adds over k (or over blocks of 32), whichever kernel and tile computes it, so
that a row's result depends on nothing but itself.
"""

from typing import Any

from sporelm.backends.cpu.formats.panels import RECORD, X_BIAS, X_SCALE, X_SCALED_SUM, Block, BlockPanels, FloatPanels
from sporelm.backends.cpu.jit import Builder, Val, Var

Sums = list[list[Var]]  # [token][panel], f32 vectors


def zeros(k: Builder, tokens: int, panels: int) -> Sums:
    return [[k.zero(k.vf) for _ in range(panels)] for _ in range(tokens)]


def add_block(k: Builder, sums: Sums, blocks: list[Block], records: list[Val], biased: bool) -> None:
    """sums += one block of 32 columns of each panel times each token's record."""
    tokens, panels = range(len(sums)), range(len(blocks))
    for p in panels:
        if blocks[p].offset is not None:
            offset = blocks[p].offset()  # type: ignore[misc]
            for t in tokens:
                sums[t][p].set(k.fma(offset, k.broadcast(k.vf, records[t], X_SCALED_SUM), sums[t][p].value))
    chains = 2 if len(sums) * len(blocks) < 4 else 1
    dots = [[[k.const(k.vi, 0)] * chains for _ in panels] for _ in tokens]
    if biased:
        for t in tokens:
            bias = k.broadcast(k.vi, records[t], X_BIAS)
            for p in panels:
                dots[t][p][0] = bias
    for number in range(8):
        words = [block.word(number) for block in blocks]
        chain = number * chains // 8
        for t in tokens:
            x = k.broadcast(k.vi, records[t], 4 * number)
            for p in panels:
                dots[t][p][chain] = k.target.dot(k, dots[t][p][chain], words[p], x)
    for p in panels:
        scale = blocks[p].scale()
        for t in tokens:
            total = dots[t][p][0] if chains == 1 else dots[t][p][0] + dots[t][p][1]
            scaled = total.to_float() * k.broadcast(k.vf, records[t], X_SCALE)
            sums[t][p].set(k.fma(scaled, scale, sums[t][p].value))


def dot_panels(k: Builder, kind: Any, panels: list[Val], rows: list[Val], width: Val, ahead: int | Val = 0) -> Sums:
    """Each row times each whole panel. `width` counts columns; `ahead` bytes of the panels are prefetched."""
    sums = zeros(k, len(rows), len(panels))
    if isinstance(kind, BlockPanels):
        with k.range((width + (kind.k_step - 1)) // kind.k_step) as group:
            here = [k.at(panel, group * kind.group_bytes) for panel in panels]
            records = [k.opaque(k.at(row, group * (RECORD * kind.blocks))) for row in rows]
            if not isinstance(ahead, int) or ahead:
                for start in here:
                    later = k.at(start, ahead)
                    for line in range(0, kind.group_bytes, 64):
                        k.prefetch(later, line)
            for index in range(kind.blocks):
                blocks = [kind.block(k, start, index) for start in here]
                add_block(k, sums, blocks, [k.at(r, RECORD * index) for r in records], kind.biased)
    else:
        add_columns(k, kind, sums, panels, rows, width)
    return sums


def add_columns(k: Builder, kind: FloatPanels, sums: Sums, panels: list[Val], rows: list[Val], width: Val) -> None:
    """sums += columns 0..width of float panels times rows of f32, four columns a turn."""
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


def _add_column(k: Builder, kind: FloatPanels, sums: Sums, panels: list[Val], rows: list[Val], column: int) -> None:
    weights = [kind.column(k, panel, column * kind.group_bytes) for panel in panels]
    for t, row in enumerate(rows):
        x = k.broadcast(k.vf, row, 4 * column)
        for p, weight in enumerate(weights):
            sums[t][p].set(k.fma(x, weight, sums[t][p].value))


def silu_mul(k: Builder, gate: Val, up: Val) -> Val:
    """silu(gate) * up."""
    return gate / (k.exp(-gate) + 1.0) * up
