"""Q8_0 panels: a group is two blocks of 32 columns, so that vectors are aligned; after an odd last block come zeros.

[2 x lanes f16 scales][2 x 8 vectors]: in vector j a lane holds columns 4j..4j+3 of its row as bytes, plus 128 where the
target's dot product wants weights without a sign.
"""

from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, vec
from sporelm.backends.cpu.targets.target import SIGNED

ADD_128 = -0x7F7F7F80  # 0x80808080 as a signed i32: its exclusive or adds 128 to each byte
FILE_BLOCK = 34  # f16 scale, 32 int8


class Q8_0Panels(BlockPanels):
    name = "Q8_0"
    k_step = 64
    blocks = 2

    @property
    def zero(self) -> int:
        return self.target.signed_zero

    @property
    def largest(self) -> int:  # type: ignore[override]
        return 255 if self.zero else SIGNED

    def _moved(self, words: Val) -> Val:
        """Signed bytes to those of the panel, or back."""
        return words ^ ADD_128 if self.zero else words

    @property
    def group_bytes(self) -> int:
        return 68 * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        for half in range(2):
            exists = group * 64 + 32 * half < width
            there = [Val(k, k.ir.and_(p.raw, exists.raw)) for p in present]
            start = group * (2 * FILE_BLOCK) + half * FILE_BLOCK
            safe = k.select(exists, start, k.index(0))
            k.store(gather(k, i16, rows, there, safe), target, 2 * self.lanes * half)
            for word in range(8):
                place = 4 * self.lanes + 32 * self.lanes * half + 4 * self.lanes * word
                k.store(self._moved(gather(k, i32, rows, there, safe + (2 + 4 * word))), target, place)

    def block(self, k: Builder, group: Val, index: int) -> Block:
        start = 4 * self.lanes + 32 * self.lanes * index
        scale = 2 * self.lanes * index
        return Block(
            lambda word: k.load(k.vi, group, start + 4 * self.lanes * word),
            lambda: k.target.from_half(k, k.load(vec(i16, self.lanes), group, scale)),
        )

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        values = []
        for half in range(2):
            first = 4 * self.lanes + 32 * self.lanes * half
            words = [self._moved(k.load(i32, start, lane * 4 + (first + 4 * self.lanes * word))) for word in range(8)]
            scale = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2 + 2 * self.lanes * half)))
            values += [value * scale for value in byte_values(k, words, signed=True)]
        return values
