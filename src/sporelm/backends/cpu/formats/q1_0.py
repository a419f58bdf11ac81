"""Q1_0 panels: a bit becomes byte 0 or 2, and 1 stands for 0."""

from sporelm.backends.cpu.formats.bit_panels import BitPanels


class Q1_0Panels(BitPanels):
    name = "Q1_0"
    blocks = file_blocks = 4
    place = 1
