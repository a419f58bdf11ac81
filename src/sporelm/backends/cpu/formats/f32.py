"""F32 panels: [width][lanes] f32."""

from sporelm.backends.cpu.formats.panels import FloatPanels
from sporelm.backends.cpu.jit import Builder, Val


class F32Panels(FloatPanels):
    name = "F32"

    def widened(self, k: Builder, stored: Val) -> Val:
        return stored
