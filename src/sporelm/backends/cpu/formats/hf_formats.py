"""Panels of formats that only Hugging Face folders have."""

from sporelm.backends.cpu.formats.f8_e4m3 import F8_E4M3_32Panels, F8_E4M3_64Panels, F8_E4M3_128Panels
from sporelm.backends.cpu.formats.f8_e5m2 import F8_E5M2_32Panels, F8_E5M2_64Panels, F8_E5M2_128Panels
from sporelm.backends.cpu.formats.int8 import INT8_32Panels, INT8_64Panels, INT8_128Panels
from sporelm.backends.cpu.formats.nf4 import NF4Panels
from sporelm.backends.cpu.formats.panels import Panels
from sporelm.backends.cpu.formats.uint4 import UINT4_32Panels, UINT4_64Panels, UINT4_128Panels
from sporelm.backends.cpu.formats.uint8 import UINT8_32Panels, UINT8_64Panels, UINT8_128Panels

_INTEGERS = (
    UINT4_32Panels, UINT4_64Panels, UINT4_128Panels, UINT8_32Panels, UINT8_64Panels, UINT8_128Panels,
    INT8_32Panels, INT8_64Panels, INT8_128Panels,
)  # fmt: skip
_FLOATS = (
    F8_E4M3_32Panels, F8_E4M3_64Panels, F8_E4M3_128Panels, F8_E5M2_32Panels, F8_E5M2_64Panels, F8_E5M2_128Panels,
    NF4Panels,
)  # fmt: skip
HF_FORMATS: dict[str, type[Panels]] = {kind.name: kind for kind in (*_INTEGERS, *_FLOATS)}
