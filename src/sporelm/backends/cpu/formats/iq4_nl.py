"""IQ4_NL panels: levels from -127 to 113, two blocks per group, each with an f16 scale.

128 is added to the levels where the target's dot product needs unsigned weights.
"""

from sporelm.backends.cpu.formats.table_panels import TablePanels
from sporelm.backends.cpu.targets.cpu_target import SIGNED, CpuTarget
from sporelm.quant.nonuniform_levels import IQ4_LEVELS


class IQ4_NLPanels(TablePanels):
    name = "IQ4_NL"
    levels = IQ4_LEVELS
    blocks = 2

    def __init__(self, target: CpuTarget) -> None:
        self.largest = 0 if target.signed_zero else SIGNED
        super().__init__(target)

    @property
    def zero(self) -> int:
        return self.target.signed_zero
