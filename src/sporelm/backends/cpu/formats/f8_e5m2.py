"""F8_E5M2 panels: bytes of five bits of exponent and two of fraction, and a scale for each group."""

from typing import Any

from sporelm.backends.cpu.formats.scaled_floats import ScaledPanels
from sporelm.backends.cpu.jit import Val


class E5M2Panels(ScaledPanels):
    """The upper half of a float16."""

    def halves(self, bytes_: Val, kind: Any) -> Val:
        return bytes_.zext(kind) << 8


class F8_E5M2_32Panels(E5M2Panels):
    name = "F8_E5M2_32"
    columns = 32


class F8_E5M2_64Panels(E5M2Panels):
    name = "F8_E5M2_64"
    columns = 64


class F8_E5M2_128Panels(E5M2Panels):
    name = "F8_E5M2_128"
    columns = 128
