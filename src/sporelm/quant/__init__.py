"""Number formats: how values are packed into blocks of bytes, and how to pack and unpack them. One file per format."""

from sporelm.quant.bf16 import BF16
from sporelm.quant.f8_e4m3 import F8_E4M3, F8_E4M3_32, F8_E4M3_64, F8_E4M3_128, F8_E4M3_128_W8A8
from sporelm.quant.f8_e5m2 import F8_E5M2, F8_E5M2_32, F8_E5M2_64, F8_E5M2_128
from sporelm.quant.f16 import F16
from sporelm.quant.f32 import F32
from sporelm.quant.f64 import F64
from sporelm.quant.format import FOLDER_FORMATS, FORMATS, QuantFormat, dequantize_tensor, format_of, quantize_tensor
from sporelm.quant.i8 import I8
from sporelm.quant.i16 import I16
from sporelm.quant.i32 import I32
from sporelm.quant.i64 import I64
from sporelm.quant.int8 import INT8_32, INT8_64, INT8_128
from sporelm.quant.iq1_m import IQ1_M
from sporelm.quant.iq1_s import IQ1_S
from sporelm.quant.iq2_s import IQ2_S
from sporelm.quant.iq2_xs import IQ2_XS
from sporelm.quant.iq2_xxs import IQ2_XXS
from sporelm.quant.iq3_s import IQ3_S
from sporelm.quant.iq3_xxs import IQ3_XXS
from sporelm.quant.iq4_nl import IQ4_NL
from sporelm.quant.iq4_xs import IQ4_XS
from sporelm.quant.mxfp4 import MXFP4
from sporelm.quant.nf4 import NF4
from sporelm.quant.nvfp4 import NVFP4
from sporelm.quant.q1_0 import Q1_0
from sporelm.quant.q2_0 import Q2_0
from sporelm.quant.q2_k import Q2_K
from sporelm.quant.q3_k import Q3_K
from sporelm.quant.q4_0 import Q4_0
from sporelm.quant.q4_1 import Q4_1
from sporelm.quant.q4_k import Q4_K
from sporelm.quant.q5_0 import Q5_0
from sporelm.quant.q5_1 import Q5_1
from sporelm.quant.q5_k import Q5_K
from sporelm.quant.q6_k import Q6_K
from sporelm.quant.q8_0 import Q8_0
from sporelm.quant.q8_1 import Q8_1
from sporelm.quant.q8_k import Q8_K
from sporelm.quant.tq1_0 import TQ1_0
from sporelm.quant.tq2_0 import TQ2_0
from sporelm.quant.uint4 import UINT4_32, UINT4_64, UINT4_128
from sporelm.quant.uint8 import UINT8_32, UINT8_64, UINT8_128

__all__ = [
    "BF16",
    "F8_E4M3",
    "F8_E4M3_32",
    "F8_E4M3_64",
    "F8_E4M3_128",
    "F8_E4M3_128_W8A8",
    "F8_E5M2",
    "F8_E5M2_32",
    "F8_E5M2_64",
    "F8_E5M2_128",
    "F16",
    "F32",
    "F64",
    "FOLDER_FORMATS",
    "FORMATS",
    "I8",
    "I16",
    "I32",
    "I64",
    "INT8_32",
    "INT8_64",
    "INT8_128",
    "IQ1_M",
    "IQ1_S",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NF4",
    "NVFP4",
    "Q1_0",
    "Q2_0",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "Q8_1",
    "Q8_K",
    "TQ1_0",
    "TQ2_0",
    "UINT4_32",
    "UINT4_64",
    "UINT4_128",
    "UINT8_32",
    "UINT8_64",
    "UINT8_128",
    "QuantFormat",
    "dequantize_tensor",
    "format_of",
    "quantize_tensor",
]
