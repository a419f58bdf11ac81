"""Number formats: how values lie in blocks of bytes, and how to read and write them; one file each."""

from sporelm.quant.bf16 import BF16
from sporelm.quant.f16 import F16
from sporelm.quant.f32 import F32
from sporelm.quant.format import FORMATS, QuantFormat, dequantize_tensor, format_of, quantize_tensor
from sporelm.quant.q4_0 import Q4_0
from sporelm.quant.q4_1 import Q4_1
from sporelm.quant.q4_k import Q4_K
from sporelm.quant.q5_0 import Q5_0
from sporelm.quant.q5_1 import Q5_1
from sporelm.quant.q5_k import Q5_K
from sporelm.quant.q6_k import Q6_K
from sporelm.quant.q8_0 import Q8_0

__all__ = [
    "BF16",
    "F16",
    "F32",
    "FORMATS",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "QuantFormat",
    "dequantize_tensor",
    "format_of",
    "quantize_tensor",
]
