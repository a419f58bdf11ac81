"""How each number format lies in panels: packed at load, unpacked to what the target multiplies.

A panel is `lanes` rows high, one row a lane of a vector, so that products need no sums across lanes. Rows past the last
one are zero.
"""

from sporelm.backends.cpu.formats.f16 import F16Panels
from sporelm.backends.cpu.formats.f32 import F32Panels
from sporelm.backends.cpu.formats.panels import BlockPanels, FloatPanels, Panels
from sporelm.backends.cpu.formats.q4_1 import Q4_1Panels
from sporelm.backends.cpu.formats.q8_0 import Q8_0Panels

FORMATS: dict[str, type[Panels]] = {kind.name: kind for kind in (F32Panels, F16Panels, Q4_1Panels, Q8_0Panels)}

__all__ = ["FORMATS", "BlockPanels", "FloatPanels", "Panels"]
