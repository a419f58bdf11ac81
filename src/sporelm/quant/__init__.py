"""Number formats: how values lie in blocks of bytes, and how to read and write them; one file each."""

from sporelm.quant.bf16 import BF16
from sporelm.quant.f16 import F16
from sporelm.quant.f32 import F32
from sporelm.quant.format import FORMATS, QuantFormat, dequantize_tensor, format_of, quantize_tensor
from sporelm.quant.q4_1 import Q4_1
from sporelm.quant.q8_0 import Q8_0

__all__ = [
    "BF16",
    "F16",
    "F32",
    "FORMATS",
    "Q4_1",
    "Q8_0",
    "QuantFormat",
    "dequantize_tensor",
    "format_of",
    "quantize_tensor",
]
