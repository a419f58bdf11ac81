"""GGUF files of GPT-J."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf.gpt2 import GPT2_KEYS
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gptj import GPTJ

GPTJ_CONSTANTS: Final = {"parallel": True, "output_bias": True, "mlp_bias": True, "rope_style": "adjacent"}


@register
class GptJGguf(GgufSchema):
    """`gptj`."""

    names = ("gptj",)
    architecture = GPTJ
    keys = gguf_keys(*GPT2_KEYS, without=("head_dim", "kv_heads", "window"))
    constants = GPTJ_CONSTANTS
    tensors = {**DECODER_TENSORS, **NORM_BIAS_TENSORS, "output.bias": "output.bias"}
    allows_partial_rotary = True
