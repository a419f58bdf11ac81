"""Q2_0 panels: two bits are 0 to 3, and 1 stands for 0."""

from sporelm.backends.cpu.formats.bit_panels import BitPanels


class Q2_0Panels(BitPanels):
    name = "Q2_0"
    blocks = file_blocks = 2
    bits = 2
