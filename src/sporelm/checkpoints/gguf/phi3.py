"""GGUF files of Phi-3, Phi-3.5 and Phi-4."""

from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_GATE_UP_TENSORS, FUSED_QKV_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class Phi3Gguf(GgufSchema):
    """`phi3`: Llama with LongRoPE (Abdin et al. 2024). llama.cpp reads no sliding window."""

    names = ("phi3",)
    architecture = Llama
    tensors = {
        **DECODER_TENSORS,
        **{name: row for name, row in FUSED_QKV_TENSORS.items() if name.endswith("weight")},
        **FUSED_GATE_UP_TENSORS,
    }
    allows_partial_rotary = True
    llama_cpp_has_window = False
