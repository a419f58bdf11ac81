"""F16 panels: [width][lanes] f16."""

from sporelm.backends.cpu.formats.panels import FloatPanels
from sporelm.backends.cpu.jit import Builder, Val, i16


class F16Panels(FloatPanels):
    name = "F16"
    element = i16

    def widened(self, k: Builder, stored: Val) -> Val:
        return k.target.from_half(k, stored)
