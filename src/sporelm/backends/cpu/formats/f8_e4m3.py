"""F8_E4M3 panels: bytes of four bits of exponent and three of fraction, and a scale for each group."""

from typing import Any

from sporelm.backends.cpu.formats.scaled_floats import ScaledPanels
from sporelm.backends.cpu.jit import Val


class E4M3Panels(ScaledPanels):
    """Shifted by 7 bits, exponent and fraction are those of a float16 whose exponents are 8 higher: 15 - 7."""

    half_unit = 256.0

    def halves(self, bytes_: Val, kind: Any) -> Val:
        return (bytes_.sext(kind) << 7) & -0x4001  # clears the bit below the sign, to which the sign was copied


class F8_E4M3_32Panels(E4M3Panels):
    name = "F8_E4M3_32"
    columns = 32


class F8_E4M3_64Panels(E4M3Panels):
    name = "F8_E4M3_64"
    columns = 64


class F8_E4M3_128Panels(E4M3Panels):
    name = "F8_E4M3_128"
    columns = 128
