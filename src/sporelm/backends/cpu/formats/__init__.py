"""Panels: the layout in which the kernels read weights of each number format.

Weights are packed at load, and unpacked to what the target multiplies. A panel is `lanes` rows high, with one row per
lane of a vector, so that products need no sums across lanes. Rows past the last one are zero.
"""

from sporelm.backends.cpu.formats.bf16 import BF16Panels
from sporelm.backends.cpu.formats.f16 import F16Panels
from sporelm.backends.cpu.formats.f32 import F32Panels
from sporelm.backends.cpu.formats.iq1 import IQ1_MPanels, IQ1_SPanels
from sporelm.backends.cpu.formats.iq2 import IQ2_SPanels, IQ2_XSPanels, IQ2_XXSPanels
from sporelm.backends.cpu.formats.iq3 import IQ3_SPanels, IQ3_XXSPanels
from sporelm.backends.cpu.formats.iq4_nl import IQ4_NLPanels
from sporelm.backends.cpu.formats.iq4_xs import IQ4_XSPanels
from sporelm.backends.cpu.formats.mxfp4 import MXFP4Panels
from sporelm.backends.cpu.formats.nvfp4 import NVFP4Panels
from sporelm.backends.cpu.formats.panels import BlockPanels, FloatPanels, IntegerPanels, Panels, SuperPanels
from sporelm.backends.cpu.formats.q1_0 import Q1_0Panels
from sporelm.backends.cpu.formats.q2_0 import Q2_0Panels
from sporelm.backends.cpu.formats.q2_k import Q2_KPanels
from sporelm.backends.cpu.formats.q3_k import Q3_KPanels
from sporelm.backends.cpu.formats.q4_0 import Q4_0Panels
from sporelm.backends.cpu.formats.q4_1 import Q4_1Panels
from sporelm.backends.cpu.formats.q4_k import Q4_KPanels
from sporelm.backends.cpu.formats.q5_0 import Q5_0Panels
from sporelm.backends.cpu.formats.q5_1 import Q5_1Panels
from sporelm.backends.cpu.formats.q5_k import Q5_KPanels
from sporelm.backends.cpu.formats.q6_k import Q6_KPanels
from sporelm.backends.cpu.formats.q8_0 import Q8_0Panels
from sporelm.backends.cpu.formats.ternary import TQ1_0Panels, TQ2_0Panels

_FLOATS = (F32Panels, F16Panels, BF16Panels)
_BLOCKS = (Q4_0Panels, Q4_1Panels, Q5_0Panels, Q5_1Panels, Q8_0Panels, Q1_0Panels, Q2_0Panels)
_TABLES = (IQ4_NLPanels, MXFP4Panels, NVFP4Panels)
_SUPER_BLOCKS = (Q2_KPanels, Q3_KPanels, Q4_KPanels, Q5_KPanels, Q6_KPanels, TQ1_0Panels, TQ2_0Panels)
_IQ1_2 = (IQ1_SPanels, IQ1_MPanels, IQ2_XXSPanels, IQ2_XSPanels, IQ2_SPanels)
_IQ3_4 = (IQ3_XXSPanels, IQ3_SPanels, IQ4_XSPanels)
FORMATS: dict[str, type[Panels]] = {
    kind.name: kind for kind in (*_FLOATS, *_BLOCKS, *_TABLES, *_SUPER_BLOCKS, *_IQ1_2, *_IQ3_4)
}

__all__ = ["FORMATS", "BlockPanels", "FloatPanels", "IntegerPanels", "Panels", "SuperPanels"]
