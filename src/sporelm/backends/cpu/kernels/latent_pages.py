"""The layout of pages of latent rows: as in canonical form (ops/canonical_pages.py), row after row.

A row serves as key and as value of all heads: scores read it along its numbers, mixing along positions. One stored copy
suits neither; kernels widen a page to f32 once for many heads, and read that.
"""

from dataclasses import dataclass

from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i16, vec
from sporelm.backends.cpu.kernels.kv_pages import BLOCK_VALUES, round_block
from sporelm.backends.cpu.kernels.narrow_floats import element_bytes, load_element, narrow_to_element
from sporelm.ops.paged_attention import PAGE

BLOCK_BYTES = 34


@dataclass(frozen=True)
class LatentPages:
    """The layout of rows of `width` numbers; element: "f32", one of NARROW_ELEMENTS, or "Q8_0"."""

    width: int
    element: str

    @property
    def groups(self) -> int:
        """Return the blocks of a row; 0 if numbers have no scales."""
        return -(-self.width // BLOCK_VALUES) if self.element == "Q8_0" else 0

    @property
    def row_bytes(self) -> int:
        return self.groups * BLOCK_BYTES or self.width * element_bytes(self.element)

    @property
    def page_bytes(self) -> int:
        return PAGE * self.row_bytes

    @property
    def padded(self) -> int:
        """Return the numbers of a widened row: whole blocks, and whole cache lines of f32."""
        return -(-self.width // BLOCK_VALUES) * BLOCK_VALUES

    @property
    def name(self) -> str:
        return f"{self.width}_{self.element}"

    def widen(self, k: Builder, row: Val, out: Val) -> None:
        """Widen one row to f32; numbers past its width in `out` are unspecified."""
        if self.groups:
            with k.range(self.groups) as group:
                block = k.at(row, group * BLOCK_BYTES)
                scale = k.target.from_half(k, k.splat(k.load(i16, block), k.lanes))
                for at in range(0, BLOCK_VALUES, k.lanes):
                    values = k.load(vec(i8, k.lanes), block, 2 + at).sext(k.vi).to_float()
                    k.store(values * scale, out, group * (4 * BLOCK_VALUES) + 4 * at)
            return
        whole, size = self.width // k.lanes * k.lanes, element_bytes(self.element)
        with k.range(0, whole, k.lanes) as column:
            k.store(load_element(k, self.element, k.lanes, row, column * size), out, column * 4)
        for rest in range(whole, self.width):
            k.store(load_element(k, self.element, 1, row, rest * size), out, rest * 4)

    def store(self, k: Builder, cache: Val, page_bytes: Val, slot: Val, source: Val) -> None:
        """Write the f32 row at `source`, with zeros from its width to `padded`, to a slot of the cache."""
        row = k.at(cache, slot // PAGE * page_bytes + slot % PAGE * self.row_bytes)
        if self.groups:
            with k.range(self.groups) as group:
                block = k.at(row, group * BLOCK_BYTES)
                parts = [
                    k.load(k.vf, source, group * (4 * BLOCK_VALUES) + 4 * at) for at in range(0, BLOCK_VALUES, k.lanes)
                ]
                scale, integers = round_block(k, parts)
                k.store(k.target.to_half(k, scale), block)
                for number, part in enumerate(integers):
                    k.store(part.trunc(vec(i8, k.lanes)), block, 2 + number * k.lanes)
            return
        whole, size = self.width // k.lanes * k.lanes, element_bytes(self.element)
        with k.range(0, whole, k.lanes) as column:
            k.store(narrow_to_element(k, self.element, k.load(k.vf, source, column * 4)), row, column * size)
        for rest in range(whole, self.width):
            k.store(narrow_to_element(k, self.element, k.load(f32, source, rest * 4)), row, rest * size)
