"""IQ4_NL panels: levels from -127 to 113, two blocks a group, each with an f16 scale.

Where the target's dot product wants weights without a sign, 128 is added to the levels.
"""

from sporelm.backends.cpu.formats.tables import TablePanels
from sporelm.backends.cpu.targets.target import SIGNED, Target
from sporelm.quant.levels import CURVED


class IQ4_NLPanels(TablePanels):
    name = "IQ4_NL"
    levels = CURVED
    blocks = 2

    def __init__(self, target: Target) -> None:
        self.largest = 0 if target.signed_zero else SIGNED
        super().__init__(target)

    @property
    def zero(self) -> int:
        return self.target.signed_zero
