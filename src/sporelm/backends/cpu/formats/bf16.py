"""BF16 panels: [width][lanes] bf16, the upper half of an f32."""

from sporelm.backends.cpu.formats.panels import FloatPanels, gather
from sporelm.backends.cpu.jit import Builder, Val, f32, i16, i32, vec


class BF16Panels(FloatPanels):
    name = "BF16"
    element = 2

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        k.store(gather(k, i16, rows, present, group * 2), target)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        return [(k.load(i16, panel, group * self.group_bytes + lane * 2).zext(i32) << 16).bits(f32)]

    def column(self, k: Builder, panel: Val, offset: int | Val = 0) -> Val:
        return (k.load(vec(i16, self.lanes), panel, offset).zext(k.vi) << 16).bits(k.vf)
