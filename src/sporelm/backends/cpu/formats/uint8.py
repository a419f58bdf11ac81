"""UINT8 panels: bytes, a scale and a zero point for each group."""

from sporelm.backends.cpu.formats.grouped_integers import GroupedPanels


class UINT8Panels(GroupedPanels):
    bits = 8
    has_offset = True


class UINT8_32Panels(UINT8Panels):
    name = "UINT8_32"
    blocks = 1


class UINT8_64Panels(UINT8Panels):
    name = "UINT8_64"
    blocks = 2


class UINT8_128Panels(UINT8Panels):
    name = "UINT8_128"
    blocks = 4
