"""Q5_0 panels: five bits around 16 and a scale."""

from sporelm.backends.cpu.formats.nibble_panels import NibblePanels


class Q5_0Panels(NibblePanels):
    name = "Q5_0"
    fifth = True
    middle = 16
