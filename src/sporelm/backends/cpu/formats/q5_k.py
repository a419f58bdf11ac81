"""Q5_K panels: super-blocks of five bits with scales and minima."""

from sporelm.backends.cpu.formats.minima_panels import MinimaPanels


class Q5_KPanels(MinimaPanels):
    name = "Q5_K"
    fifth = True
