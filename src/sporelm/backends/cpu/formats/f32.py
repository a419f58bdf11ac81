"""F32 panels: [width][lanes] f32."""

from sporelm.backends.cpu.formats.panels import FloatPanels, gather
from sporelm.backends.cpu.jit import Builder, Val, f32


class F32Panels(FloatPanels):
    name = "F32"
    element = 4

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        k.store(gather(k, f32, rows, present, group * 4), target)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        return [k.load(f32, panel, group * self.group_bytes + lane * 4)]

    def column(self, k: Builder, panel: Val, offset: int | Val = 0) -> Val:
        return k.load(k.vf, panel, offset)
