"""The layout of KV pages.

A page holds 64 positions of every kv head: per head keys as [head_dim][64], so that a vector of scores is a run of
positions, then values as [64][head_dim]. head_dim is rounded up to whole cache lines of f32 vectors; the padding is
zero.

Pages of Q8_0 hold bytes there. The scales, f16 [head_dim / 32][64], precede the keys, and the values. Sums over 32
columns of keys are multiplied by the scales of a run of positions. Weights are multiplied by the values' scales before
they multiply bytes. So a byte costs no more than its conversion to f32.
"""

from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i16, vec
from sporelm.backends.cpu.kernels.narrow_floats import element_bytes, load_element, narrow_to_element
from sporelm.ops.paged_attention import PAGE

BLOCK_VALUES = 32  # values of a Q8_0 block; defined here, where the cache key of kernels covers it


@dataclass(frozen=True)
class KvPages:
    """The layout for one head size and element: "f32", one of NARROW_ELEMENTS, "Q8_0", or "Q8_0 wide": f32 in place of
    bytes and f16."""

    head_dim: int
    element: str

    @property
    def groups(self) -> int:
        """Return the blocks of a position, each with a scale; 0 if numbers have none."""
        return -(-self.head_dim // BLOCK_VALUES) if self.element.startswith("Q8_0") else 0

    @property
    def padded(self) -> int:
        return self.groups * BLOCK_VALUES or (self.head_dim + 15) // 16 * 16

    @property
    def size(self) -> int:
        """Return the bytes of a number."""
        return 1 if self.element == "Q8_0" else element_bytes(self.element)

    @property
    def scale_size(self) -> int:
        return 2 if self.element == "Q8_0" else 4

    @property
    def scales_bytes(self) -> int:
        """Return the bytes of the scales before the keys (and before the values) of one head."""
        return self.groups * PAGE * self.scale_size

    @property
    def half_bytes(self) -> int:
        """Return the bytes of the keys (and of the values) of one head in a page, scales included."""
        return self.scales_bytes + self.padded * PAGE * self.size

    @property
    def name(self) -> str:
        return f"{self.head_dim}_{self.element}".replace(" ", "_")

    @property
    def widened(self) -> "KvPages":
        """Return the same layout with f32 for all numbers: kernels give equal results on both, bit for bit."""
        return KvPages(self.head_dim, "Q8_0 wide" if self.groups else "f32")

    def page_bytes(self, kv_heads: int) -> int:
        return 2 * kv_heads * self.half_bytes

    def load(self, k: Builder, base: Val, offset: int | Val = 0) -> Val:
        """Load a vector of numbers as f32, bytes without their scale."""
        if self.size == 4:
            return k.load(k.vf, base, offset)
        if self.groups:
            return k.load(vec(i8, k.lanes), base, offset).sext(k.vi).to_float()
        return load_element(k, self.element, k.lanes, base, offset)

    def scale(self, k: Builder, half: Val, group: int | Val, position: int) -> Val:
        """Load the scales of a block at a run of positions, f32; `half` is the address of a head's keys or values."""
        base = k.at(half, group * (PAGE * self.scale_size))
        if self.scale_size == 4:
            return k.load(k.vf, base, 4 * position)
        return k.target.from_half(k, k.load(vec(i16, k.lanes), base, 2 * position))

    def widen(self, k: Builder, source: Val, target: Val) -> None:
        """Widen the keys and values of one head in a page to the layout `widened`."""
        for half in range(2):
            begin, end = k.at(source, half * self.half_bytes), k.at(target, half * self.widened.half_bytes)
            with k.range(self.groups * PAGE // k.lanes) as at:
                scales = k.load(vec(i16, k.lanes), begin, at * (k.lanes * self.scale_size))
                k.store(k.target.from_half(k, scales), end, at * (4 * k.lanes))
            begin, end = k.at(begin, self.scales_bytes), k.at(end, self.widened.scales_bytes)
            with k.range(self.padded * PAGE // k.lanes) as at:
                k.store(self.load(k, begin, at * (k.lanes * self.size)), end, at * (4 * k.lanes))

    def store(self, k: Builder, cache: Val, page_bytes: Val, slot: Val, head: Val, key: Val, value: Val) -> None:
        """Write the f32 key and value at these addresses to a slot of the cache."""
        keys = k.at(cache, slot // PAGE * page_bytes + head * (2 * self.half_bytes))
        values, position = k.at(keys, self.half_bytes), slot % PAGE
        columns = k.at(keys, position * self.size + self.scales_bytes)
        row = k.at(values, position * (self.padded * self.size) + self.scales_bytes)
        if self.groups:
            self._store_blocks(k, key, k.at(keys, position * 2), columns, PAGE)
            self._store_blocks(k, value, k.at(values, position * 2), row, 1)
            return
        whole = self.head_dim // k.lanes * k.lanes
        for at in range(0, whole, k.lanes):
            elements = narrow_to_element(k, self.element, k.load(k.vf, key, 4 * at))
            for lane in range(k.lanes):
                k.store(elements.lane(lane), columns, (at + lane) * PAGE * self.size)
            k.store(narrow_to_element(k, self.element, k.load(k.vf, value, 4 * at)), row, at * self.size)
        for at in range(whole, self.head_dim):
            k.store(narrow_to_element(k, self.element, k.load(f32, key, 4 * at)), columns, at * PAGE * self.size)
            k.store(narrow_to_element(k, self.element, k.load(f32, value, 4 * at)), row, at * self.size)

    def _store_blocks(self, k: Builder, source: Val, scales: Val, numbers: Val, step: int) -> None:
        """Round a head's f32 values at `source` to blocks, a byte every `step` bytes from `numbers` on."""
        for group in range(self.groups):
            parts = [self._load_padded(k, source, group * BLOCK_VALUES + at) for at in range(0, BLOCK_VALUES, k.lanes)]
            scale, integers = round_block(k, parts)
            k.store(k.target.to_half(k, scale), scales, group * (PAGE * 2))
            for number, part in enumerate(integers):
                at, narrow = group * BLOCK_VALUES + number * k.lanes, part.trunc(vec(i8, k.lanes))
                if step == 1:
                    k.store(narrow, numbers, at)
                    continue
                for lane in range(k.lanes):
                    k.store(narrow.lane(lane), numbers, (at + lane) * step)

    def _load_padded(self, k: Builder, source: Val, start: int) -> Val:
        """Load a vector of f32 from column `start` on, zero past the last column."""
        if start + k.lanes <= self.head_dim:
            return k.load(k.vf, source, 4 * start)
        if start >= self.head_dim:
            return k.const(k.vf, 0)
        columns = range(start, start + k.lanes)
        zero = k.const(f32, 0)
        return k.vector([k.load(f32, source, 4 * at) if at < self.head_dim else zero for at in columns])


def round_block(k: Builder, parts: list[Val]) -> tuple[Val, list[Val]]:
    """Return the scale (f32) and the integers (i32 vectors) of 32 f32 values, bit for bit as in quant/q8_0.py."""
    # Magnitudes compare like integers, with NaN as the greatest, so that it is not lost.
    magnitudes: list[Any] = [part.bits(k.vi) & 0x7FFFFFFF for part in parts]
    while len(magnitudes) > 1:
        magnitudes = [k.max(a, b) for a, b in zip(magnitudes[::2], magnitudes[1::2], strict=True)]
    scale = k.fold(magnitudes[0], k.max).bits(f32) / 127.0
    quotient = k.const(f32, 1.0) / scale  # not finite for 0, nearly 0, and NaN: zeros
    inverse = k.splat(k.select(k.fabs(quotient) < float("inf"), quotient, k.const(f32, 0.0)))
    integers = []
    for part in parts:
        scaled = part * inverse
        # NaN gives any integer: the scale is NaN.
        scaled = k.select(k.fabs(scaled) < 128.0, scaled, k.const(k.vf, 0.0))
        whole = scaled.to_int()
        away = k.select(scaled < 0.0, k.const(k.vi, -1), k.const(k.vi, 1))  # as C's roundf: halves away from zero
        half = k.fabs(scaled - whole.to_float()) >= 0.5
        integers.append(whole + k.select(half, away, k.const(k.vi, 0)))
    return scale, integers
