"""F16 panels: [width][lanes] f16."""

from sporelm.backends.cpu.formats.panels import FloatPanels, gather
from sporelm.backends.cpu.jit import Builder, Val, i16, vec


class F16Panels(FloatPanels):
    name = "F16"
    element = 2

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        k.store(gather(k, i16, rows, present, group * 2), target)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        return [k.target.from_half(k, k.load(i16, panel, group * self.group_bytes + lane * 2))]

    def column(self, k: Builder, panel: Val, offset: int | Val = 0) -> Val:
        return k.target.from_half(k, k.load(vec(i16, self.lanes), panel, offset))
