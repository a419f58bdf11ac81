"""Q4_1 panels: nibbles, a scale and a minimum."""

from sporelm.backends.cpu.formats.nibble_panels import NibblePanels


class Q4_1Panels(NibblePanels):
    name = "Q4_1"
    has_offset = True
