"""Products for many tokens (prefill).

An item is a few panels by a block of tokens. A chunk of k is unpacked to the nearest cache once, then register tiles of
panels x tokens run over it. Partial sums stay in the thread's scratch, contiguous, and continue with the next chunk, so
that the order of reduction is that of the one-token kernel.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, StoredVector, Val
from sporelm.backends.cpu.kernels.panel_products import PanelSums
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, align_spills, finish_output
from sporelm.backends.cpu.kernels.weight_chunks import make_chunk

TOKENS_PER_BLOCK = 120  # tokens an item, a multiple of every tile


def linear_many(target: Any, shape: LinearShape) -> Kernel:
    """Multiply blocks of tokens. An item is one panel tile of one token block; panel tiles are innermost, so that
    consecutive items reuse a block's activations from the cache."""
    tile = LinearTile(shape, target)
    panels, tokens = tile.chunk.panels, tile.chunk.tokens

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        align_spills(k, shape)
        panel_tiles = tile.count_panel_tiles(f)
        sums = k.at(scratch, tile.unpacked)
        with k.range(first, last) as item:
            place = tile.locate(k, f, item % panel_tiles)
            start = item // panel_tiles * TOKENS_PER_BLOCK
            stop = k.min(f.tokens, start + TOKENS_PER_BLOCK)
            with k.range((stop - start + (tokens - 1)) * panels) as line:
                k.store(k.const(k.vf, 0), sums, line * tile.vector, align=tile.vector)
            tile.multiply(k, f, place, scratch, start, stop)
            with k.range(start, stop) as token:
                tile.write(k, f, place, k.at(sums, (token - start) * tile.row), token)

    return Kernel(f"linear_many_{shape.name}", shape.fields(), body, scratch=tile.scratch)


def count_panel_tiles(shape: LinearShape, target: Any, panels: list[int]) -> int:
    """Return the number of panel tiles of the segments, which is multiplied by the number of token blocks."""
    tile = make_chunk(shape.format, target.tiles).panels
    return -(-panels[0] // (tile // 2)) if shape.gated else sum(-(-count // tile) for count in panels)


class LinearTile:
    """One kernel's tile. With `gated`, half of its panels are gate's, half up's."""

    def __init__(self, shape: LinearShape, target: Any) -> None:
        self.shape, self.chunk = shape, make_chunk(shape.format, target.tiles)
        self.panels, self.tokens = self.chunk.panels, self.chunk.tokens
        self.vector, self.row = self.chunk.vector, self.chunk.row
        self.unpacked = -(-self.chunk.nbytes // 4096) * 4096  # bytes of scratch for the unpacked chunk
        lines = TOKENS_PER_BLOCK + self.tokens
        self.widened = self.unpacked + lines * self.row  # offset in scratch, after the partial sums
        self.scratch = self.widened + lines * self.chunk.widened_bytes

    @property
    def output_panels(self) -> int:
        """Return the number of panels in a tile that have outputs of their own."""
        return self.panels // 2 if self.shape.gated else self.panels

    def count_panel_tiles(self, f: Any) -> Val:
        """Return the number of panel tiles of all segments, computed in the kernel."""
        return sum((self._segment_tiles(f, s) for s in range(1, self._segments)), self._segment_tiles(f, 0))

    @property
    def _segments(self) -> int:
        """Return the number of segments with outputs of their own."""
        return 1 if self.shape.gated else self.shape.segments

    def _segment_tiles(self, f: Any, segment: int) -> Val:
        return (getattr(f, f"panels{segment}") + (self.output_panels - 1)) // self.output_panels

    def locate(self, k: Builder, f: Any, tile: Val) -> dict[str, Any]:
        """Return the addresses of the tile's panels; one past a segment's end repeats its last, and is not written."""
        group = self.output_panels
        names = ["weight", "out", "panels", "out_stride", *(["bias"] if self.shape.bias else [])]
        chosen = {name: getattr(f, f"{name}0") for name in names}
        index, start = tile * group, self._segment_tiles(f, 0)
        for s in range(1, self._segments):
            past = tile >= start
            chosen = {name: k.select(past, getattr(f, f"{name}{s}"), value) for name, value in chosen.items()}
            index = k.select(past, (tile - start) * group, index)
            start = start + self._segment_tiles(f, s)
        weights = [chosen["weight"], f.weight1] if self.shape.gated else [chosen["weight"]]
        last = chosen["panels"] - 1
        where = [k.min(index + p, last) for p in range(group)]
        panels = [k.at(weight, at * f.panel_bytes) for weight in weights for at in where]
        return {**chosen, "index": index, "addresses": panels, "group": group}

    def multiply(self, k: Builder, f: Any, place: dict[str, Any], scratch: Val, start: Val, stop: Val) -> None:
        """Process all chunks of k: unpack one, then run the tiles of tokens over it."""
        parts = self.chunk
        total, sums = parts.units(f.width), k.at(scratch, self.unpacked)
        step = parts.chunk_step(k, total)
        with k.range(0, total, step) as first:
            count = k.min(total - first, step)
            with k.range(count) as unit:
                parts.unpack(k, place["addresses"], first + unit, scratch, unit)
            if parts.widened_bytes:
                with k.range(start, stop) as token:
                    row = self.row_of(k, f, place, token, first * parts.row_bytes)
                    parts.widen(k, row, count, self._widened(k, scratch, token - start))
            with k.range(start, stop, self.tokens) as token:
                if parts.widened_bytes:
                    rows = [self._widened(k, scratch, token - start + t) for t in range(self.tokens)]
                else:
                    rows = self.rows(k, f, place, token, first * parts.row_bytes)
                at = k.at(sums, (token - start) * self.row)
                if parts.keeps_sums:
                    held = self._load_sums(k, at)
                    parts.add(k, held, scratch, rows, count)
                    self._put(k, held, at)
                else:
                    parts.add(k, self._stored_sums(k, at), scratch, rows, count)

    def _widened(self, k: Builder, scratch: Val, line: Val) -> Val:
        return k.at(scratch, line * self.chunk.widened_bytes + self.widened)

    def _load_sums(self, k: Builder, at: Val) -> PanelSums:
        """Load the tile's partial sums into registers."""
        return [[k.var(value.value) for value in row] for row in self._stored_sums(k, at)]

    def _stored_sums(self, k: Builder, at: Val) -> list[list[StoredVector]]:
        """Return the tile's partial sums in memory."""
        places = [[t * self.row + p * self.vector for p in range(self.panels)] for t in range(self.tokens)]
        return [[StoredVector(k, k.vf, k.at(at, place)) for place in row] for row in places]

    def _put(self, k: Builder, held: PanelSums, at: Val) -> None:
        for t, row in enumerate(held):
            for p, value in enumerate(row):
                k.store(value.value, at, t * self.row + p * self.vector, align=self.vector)

    def rows(self, k: Builder, f: Any, place: dict[str, Any], token: Val, offset: Val) -> list[Val]:
        """Return the addresses in x of the tile's tokens; one past the last repeats it, and is not written."""
        last = f.tokens - 1
        return [self.row_of(k, f, place, k.min(token + t, last), offset) for t in range(self.tokens)]

    def row_of(self, k: Builder, f: Any, place: dict[str, Any], token: Val, offset: Val) -> Val:
        """Return the address of a token in x, `offset` bytes on."""
        return k.at(f.x, token * f.x_stride + offset)

    def out_row(self, k: Builder, place: dict[str, Any], token: Val) -> Val:
        """Return the address of a token's outputs."""
        return k.at(place["out"], token * place["out_stride"])

    def write(self, k: Builder, f: Any, place: dict[str, Any], sums: Val, token: Val) -> None:
        """Write one token's finished sums to the outputs, except those past the segment's end."""
        group = place["group"]
        row = self.out_row(k, place, token)
        for p in range(group):
            index = place["index"] + p
            with k.when(index < place["panels"]):
                parts = range(p, self.panels, group)
                values = [k.load(k.vf, sums, part * self.vector, align=self.vector) for part in parts]
                bias = k.at(place["bias"], index * self.vector) if self.shape.bias else None
                k.store(finish_output(k, self.shape, values, bias), row, index * self.vector)
