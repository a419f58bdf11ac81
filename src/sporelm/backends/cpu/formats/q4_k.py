"""Q4_K panels: super-blocks of nibbles with scales and minima."""

from sporelm.backends.cpu.formats.minima_panels import MinimaPanels


class Q4_KPanels(MinimaPanels):
    name = "Q4_K"
