"""Q5_1 panels: five bits, a scale and a minimum."""

from sporelm.backends.cpu.formats.nibble_panels import NibblePanels


class Q5_1Panels(NibblePanels):
    name = "Q5_1"
    has_offset = True
    fifth = True
