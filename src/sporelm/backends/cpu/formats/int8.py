"""INT8 panels: signed bytes and a scale for each group."""

from sporelm.backends.cpu.formats.grouped_integers import GroupedPanels


class INT8Panels(GroupedPanels):
    bits = 8
    has_offset = False


class INT8_32Panels(INT8Panels):
    name = "INT8_32"
    blocks = 1


class INT8_64Panels(INT8Panels):
    name = "INT8_64"
    blocks = 2


class INT8_128Panels(INT8Panels):
    name = "INT8_128"
    blocks = 4
