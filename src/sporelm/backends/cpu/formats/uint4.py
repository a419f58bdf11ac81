"""UINT4 panels: nibbles, a scale and a zero point for each group."""

from sporelm.backends.cpu.formats.grouped_integers import GroupedPanels


class UINT4Panels(GroupedPanels):
    bits = 4
    has_offset = True


class UINT4_32Panels(UINT4Panels):
    name = "UINT4_32"
    blocks = 1


class UINT4_64Panels(UINT4Panels):
    name = "UINT4_64"
    blocks = 2


class UINT4_128Panels(UINT4Panels):
    name = "UINT4_128"
    blocks = 4
