"""BF16 panels: [width][lanes] bf16, the upper half of an f32."""

from sporelm.backends.cpu.formats.panels import FloatPanels
from sporelm.backends.cpu.jit import Builder, Val, f32, i16, i32
from sporelm.backends.cpu.targets.cpu_target import widen_type


class BF16Panels(FloatPanels):
    name = "BF16"
    element = i16

    def widened(self, k: Builder, stored: Val) -> Val:
        return (stored.zext(widen_type(stored.type, i32)) << 16).bits(widen_type(stored.type, f32))
