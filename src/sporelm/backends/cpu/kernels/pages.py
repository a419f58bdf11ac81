"""How KV pages lie on the CPU.

A page holds 64 positions of every kv head: per head keys as [head_dim][64], so that a vector of scores is a run of
positions, then values as [64][head_dim]. head_dim is rounded up to whole cache lines of f32 vectors; the padding is
zero.
"""

from dataclasses import dataclass

from sporelm.backends.cpu.jit import Builder, Val, f32, i16, vec
from sporelm.ops.attention import PAGE


@dataclass(frozen=True)
class Pages:
    """The layout for one head size and element: "f16" or "f32"."""

    head_dim: int
    element: str

    @property
    def padded(self) -> int:
        return (self.head_dim + 15) // 16 * 16

    @property
    def size(self) -> int:
        return 2 if self.element == "f16" else 4

    @property
    def half_bytes(self) -> int:
        """Bytes of the keys (and of the values) of one head in a page."""
        return self.padded * PAGE * self.size

    @property
    def name(self) -> str:
        return f"{self.head_dim}_{self.element}"

    def page_bytes(self, kv_heads: int) -> int:
        return 2 * kv_heads * self.half_bytes

    def load(self, k: Builder, base: Val, offset: int | Val = 0) -> Val:
        """A vector of elements as f32."""
        if self.element == "f32":
            return k.load(k.vf, base, offset)
        return k.target.from_half(k, k.load(vec(i16, k.lanes), base, offset))

    def _narrow(self, k: Builder, values: Val) -> Val:
        return values if self.element == "f32" else k.target.to_half(k, values)

    def store(self, k: Builder, cache: Val, page_bytes: Val, slot: Val, head: Val, key: Val, value: Val) -> None:
        """Write the f32 key and value at these addresses to a slot of the cache."""
        keys = k.at(cache, slot // PAGE * page_bytes + head * (2 * self.half_bytes))
        position = slot % PAGE
        columns, row = (
            k.at(keys, position * self.size),
            k.at(keys, position * (self.padded * self.size) + self.half_bytes),
        )
        whole = self.head_dim // k.lanes * k.lanes
        for at in range(0, whole, k.lanes):
            elements = self._narrow(k, k.load(k.vf, key, 4 * at))
            for lane in range(k.lanes):
                k.store(elements.lane(lane), columns, (at + lane) * PAGE * self.size)
            k.store(self._narrow(k, k.load(k.vf, value, 4 * at)), row, at * self.size)
        for at in range(whole, self.head_dim):
            k.store(self._narrow(k, k.load(f32, key, 4 * at)), columns, at * PAGE * self.size)
            k.store(self._narrow(k, k.load(f32, value, 4 * at)), row, at * self.size)
