"""Products for many tokens (prefill).

An item is a few panels by a block of tokens. A chunk of k is unpacked to the nearest cache once, then register tiles of
panels x tokens run over it; partial sums wait in the thread's scratch, contiguous, and continue with the next chunk, so
the order of the reduction is that of the one-token kernel.
"""

from typing import Any

from sporelm.backends.cpu.formats.panels import RECORD, Block, BlockPanels, FloatPanels
from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.kernels.linear import Shape, finish
from sporelm.backends.cpu.kernels.products import Sums, add_block, add_columns

CHUNK_BLOCKS = 8  # blocks of 32 columns unpacked at once
CHUNK_COLUMNS = 128  # columns of a float format
TOKENS = 120  # tokens an item, a multiple of every tile
UNPACKED = 40960  # bytes of scratch for the unpacked chunk
SCRATCH = UNPACKED + (TOKENS + 8) * 8 * 64


def linear_many(target: Any, shape: Shape) -> Kernel:
    """Fields beyond the shared ones: none; items are `tiles_of(panels) * token blocks`, token blocks innermost."""
    blocked = isinstance(shape.format, BlockPanels)
    tiles = target.tiles
    panels, tokens = (tiles.many_panels, tiles.many_tokens) if blocked else (tiles.float_panels, tiles.float_tokens)
    lines = _Lines(shape, panels, tokens, target.lanes)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        token_blocks = (f.tokens + (TOKENS - 1)) // TOKENS
        sums = k.at(scratch, UNPACKED)
        with k.range(first, last) as item:
            place = lines.locate(k, f, item // token_blocks)
            start = item % token_blocks * TOKENS
            stop = k.min(f.tokens, start + TOKENS)
            with k.range((stop - start + (tokens - 1)) * panels) as line:
                k.store(k.const(k.vf, 0), sums, line * lines.vector, align=lines.vector)
            (lines.blocks if blocked else lines.columns)(k, f, place, scratch, sums, start, stop)
            with k.range(start, stop) as token:
                lines.write(k, f, place, k.at(sums, (token - start) * lines.row), token)

    return Kernel(f"linear_many_{shape.name}", shape.fields(), body, scratch=SCRATCH)


def items(shape: Shape, target: Any, panels: list[int]) -> int:
    """Panel tiles of the segments: what the token blocks are multiplied with."""
    blocked = isinstance(shape.format, BlockPanels)
    tile = target.tiles.many_panels if blocked else target.tiles.float_panels
    return -(-panels[0] // (tile // 2)) if shape.gated else sum(-(-count // tile) for count in panels)


class _Lines:
    """One kernel's tile: `panels` panels by `tokens` tokens. With `gated`, half the panels are gate's, half up's."""

    def __init__(self, shape: Shape, panels: int, tokens: int, lanes: int) -> None:
        self.shape, self.panels, self.tokens = shape, panels, tokens
        self.vector = 4 * lanes
        self.row = panels * self.vector
        self.format = shape.format

    def locate(self, k: Builder, f: Any, tile: Val) -> dict[str, Any]:
        """Addresses of the tile's panels; one past a segment's end repeats its last, and is not written."""
        group = self.panels // 2 if self.shape.gated else self.panels
        names = ["weight", "out", "panels", "out_stride", *(["bias"] if self.shape.bias else [])]
        chosen = {name: getattr(f, f"{name}0") for name in names}
        index = tile * group
        if not self.shape.gated:
            start = (f.panels0 + (group - 1)) // group
            for s in range(1, self.shape.segments):
                past = tile >= start
                chosen = {name: k.select(past, getattr(f, f"{name}{s}"), value) for name, value in chosen.items()}
                index = k.select(past, (tile - start) * group, index)
                start = start + (getattr(f, f"panels{s}") + (group - 1)) // group
        weights = [chosen["weight"], f.weight1] if self.shape.gated else [chosen["weight"]]
        last = chosen["panels"] - 1
        where = [k.min(index + p, last) for p in range(group)]
        panels = [k.at(weight, at * f.panel_bytes) for weight in weights for at in where]
        return {**chosen, "index": index, "addresses": panels, "group": group}

    def blocks(self, k: Builder, f: Any, place: dict[str, Any], chunk: Val, sums: Val, start: Val, stop: Val) -> None:
        """All chunks of blocks: unpack, then run the tiles."""
        groups = CHUNK_BLOCKS // self.format.blocks
        total = (f.width + (self.format.k_step - 1)) // self.format.k_step
        with k.range(0, total, groups) as group:
            count = k.min(total - group, groups)
            with k.range(count) as g:
                for p, panel in enumerate(place["addresses"]):
                    here = k.at(panel, (group + g) * self.format.group_bytes)
                    for line in range(0, self.format.group_bytes, 64):
                        k.prefetch(here, groups * self.format.group_bytes + line, 2)
                    for b in range(self.format.blocks):
                        self._unpack(k, self.format.block(k, here, b), chunk, g * self.format.blocks + b, p)
            with k.range(start, stop, self.tokens) as token:
                rows = self._rows(k, f, token, group * (RECORD * self.format.blocks))
                held, at = self._held(k, sums, token - start)
                with k.range(count * self.format.blocks) as index:
                    blocks = self._unpacked(k, chunk, index)
                    add_block(
                        k, held, blocks, [k.opaque(k.at(row, index * RECORD)) for row in rows], self.format.biased
                    )
                self._put(k, held, at)

    def _unpack(self, k: Builder, block: Block, chunk: Val, at: Val, p: int) -> None:
        """One block of panel `p` to the chunk: [block][panel][8 words], then all scales, then all offsets."""
        words = k.at(chunk, at * (8 * self.row) + 8 * p * self.vector)
        for w in range(8):
            k.store(block.word(w), words, w * self.vector, align=self.vector)
        factors = k.at(chunk, at * self.row + (CHUNK_BLOCKS * 8 * self.row + p * self.vector))
        k.store(block.scale(), factors, align=self.vector)
        if block.offset is not None:
            k.store(block.offset(), factors, CHUNK_BLOCKS * self.row, align=self.vector)

    def _unpacked(self, k: Builder, chunk: Val, index: Val) -> list[Block]:
        """Block `index` of each panel, as `_unpack` left it."""
        words = k.opaque(k.at(chunk, index * (8 * self.row)))
        scales = k.opaque(k.at(chunk, index * self.row + CHUNK_BLOCKS * 8 * self.row))

        def load(base: Val, offset: int, kind: Any) -> Val:
            return k.load(kind, base, offset, align=self.vector)

        def block(p: int) -> Block:
            at = p * self.vector
            offset = (lambda: load(scales, at + CHUNK_BLOCKS * self.row, k.vf)) if self.format.has_offset else None
            return Block(lambda w: load(words, (8 * p + w) * self.vector, k.vi), lambda: load(scales, at, k.vf), offset)

        return [block(p) for p in range(self.panels)]

    def columns(self, k: Builder, f: Any, place: dict[str, Any], chunk: Val, sums: Val, start: Val, stop: Val) -> None:
        """All chunks of columns of a float format: widen to f32, then run the tiles."""
        wide = _Columns(self.panels, self.vector)
        with k.range(0, f.width, CHUNK_COLUMNS) as column:
            count = k.min(f.width - column, CHUNK_COLUMNS)
            with k.range(count) as c:
                for p, panel in enumerate(place["addresses"]):
                    value = self.format.column(k, panel, (column + c) * self.format.group_bytes)
                    k.store(value, chunk, c * self.row + p * self.vector, align=self.vector)
            with k.range(start, stop, self.tokens) as token:
                held, at = self._held(k, sums, token - start)
                panels = [k.at(chunk, p * self.vector) for p in range(self.panels)]
                add_columns(k, wide, held, panels, self._rows(k, f, token, column * 4), count)
                self._put(k, held, at)

    def _held(self, k: Builder, sums: Val, token: Val) -> tuple[Sums, Val]:
        """The tile's partial sums in registers, and where they came from."""
        at = k.at(sums, token * self.row)
        places = [[t * self.row + p * self.vector for p in range(self.panels)] for t in range(self.tokens)]
        return [[k.var(k.load(k.vf, at, place, align=self.vector)) for place in row] for row in places], at

    def _put(self, k: Builder, held: Sums, at: Val) -> None:
        for t, row in enumerate(held):
            for p, value in enumerate(row):
                k.store(value.value, at, t * self.row + p * self.vector, align=self.vector)

    def _rows(self, k: Builder, f: Any, token: Val, offset: Val) -> list[Val]:
        """Addresses in x of the tile's tokens; one past the last repeats it, and is not written."""
        last = f.tokens - 1
        return [k.at(f.x, k.min(token + t, last) * f.x_stride + offset) for t in range(self.tokens)]

    def write(self, k: Builder, f: Any, place: dict[str, Any], sums: Val, token: Val) -> None:
        """One token's finished sums to the outputs, those past the segment's end left out."""
        group = place["group"]
        row = k.at(place["out"], token * place["out_stride"])
        for p in range(group):
            index = place["index"] + p
            with k.when(index < place["panels"]):
                parts = range(p, self.panels, group)
                values = [k.load(k.vf, sums, part * self.vector, align=self.vector) for part in parts]
                bias = k.at(place["bias"], index * self.vector) if self.shape.bias else None
                k.store(finish(k, self.shape, values, bias), row, index * self.vector)


class _Columns(FloatPanels):
    """Panels of a chunk that was widened to f32, all panels of a column side by side."""

    def __init__(self, panels: int, vector: int) -> None:
        super().__init__(vector // 4)
        self.step = panels * vector

    @property
    def group_bytes(self) -> int:
        return self.step

    def column(self, k: Builder, panel: Val, offset: int | Val = 0) -> Val:
        return k.load(k.vf, panel, offset)
