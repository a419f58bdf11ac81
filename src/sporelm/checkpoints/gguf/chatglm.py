"""GGUF files of ChatGLM2, ChatGLM3 and GLM-4 9B."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf.phi2 import OPTIONALLY_FUSED_QKV_TENSORS
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_GATE_UP_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class ChatGlmGguf(GgufSchema):
    """`chatglm`: Llama with biases on query, key and value; a part of each head is rotated, by adjacent pairs (GLM team
    2024). Files made of the first folders hold query, key and value in one tensor."""

    names = ("chatglm",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS | OPTIONALLY_FUSED_QKV_TENSORS | FUSED_GATE_UP_TENSORS
    allows_partial_rotary = True
