"""Q4_K panels: super-blocks of nibbles with scales and minima."""

from sporelm.backends.cpu.formats.super_minima import MinimaPanels


class Q4_KPanels(MinimaPanels):
    name = "Q4_K"
