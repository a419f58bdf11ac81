"""Q4_0 panels: nibbles around 8 and a scale."""

from sporelm.backends.cpu.formats.nibble_panels import NibblePanels


class Q4_0Panels(NibblePanels):
    name = "Q4_0"
    middle = 8
