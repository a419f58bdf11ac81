"""Q8_0 panels: a group is two blocks of 32 columns, so that vectors are aligned; an odd last block is padded with
zeros.

[2 x lanes f16 scales][2 x 8 vectors]: in vector j a lane holds columns 4j..4j+3 of its row as bytes, plus 128 where the
target's dot product needs unsigned weights.
"""

from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, vec
from sporelm.backends.cpu.targets.cpu_target import SIGNED, CpuTarget

ADD_128 = -0x7F7F7F80  # 0x80808080 as a signed i32: its exclusive or adds 128 to each byte
FILE_BLOCK = 34  # f16 scale, 32 int8


class Q8_0Panels(BlockPanels):
    name = "Q8_0"
    k_step = 64
    blocks = 2

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.largest = 255 if self.zero else SIGNED

    @property
    def zero(self) -> int:
        return self.target.signed_zero

    def _flip_sign_bits(self, words: Val) -> Val:
        """Convert signed bytes to those of the panel, or back."""
        return words ^ ADD_128 if self.zero else words

    @property
    def group_bytes(self) -> int:
        return 68 * self.lanes

    def _at(self, index: int, word: int) -> int:
        """Return the offset of a word of block `index` in a group."""
        return (4 + 32 * index + 4 * word) * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        for index in range(2):
            there, start = self.block_of_rows(k, present, group, index, width, FILE_BLOCK)
            k.store(gather(k, i16, rows, there, start), target, 2 * self.lanes * index)
            for word in range(8):
                values = gather(k, i32, rows, there, start + (2 + 4 * word))
                k.store(self._flip_sign_bits(values), target, self._at(index, word))

    def block(self, k: Builder, group: Val, index: int) -> Block:
        return Block(
            lambda word: k.load(k.vi, group, self._at(index, word)),
            lambda part: k.target.from_half(k, k.load(vec(i16, self.lanes), group, 2 * self.lanes * index)),
        )

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        values = []
        for index in range(2):
            words = [self._flip_sign_bits(k.load(i32, start, lane * 4 + self._at(index, word))) for word in range(8)]
            scale = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2 + 2 * self.lanes * index)))
            values += [value * scale for value in byte_values(k, words, signed=True)]
        return values
