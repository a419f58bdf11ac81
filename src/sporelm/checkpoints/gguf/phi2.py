"""GGUF files of Phi-1, Phi-1.5 and Phi-2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    ATTENTION_TENSORS,
    DECODER_TENSORS,
    FUSED_QKV_TENSORS,
    NORM_BIAS_TENSORS,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable, with_alternatives
from sporelm.models.architectures.gptj import GPTJ

PHI2_CONSTANTS: Final = {"parallel": True, "output_bias": True, **ALL_BIASES}
# Files converted from the first folders have query, key and value in one tensor.
OPTIONALLY_FUSED_QKV_TENSORS: Final[TensorTable] = with_alternatives(
    {name: ATTENTION_TENSORS[name] for name in FUSED_QKV_TENSORS}, FUSED_QKV_TENSORS
)


@register
class Phi2Gguf(GgufSchema):
    """`phi2`: GPT-J's layer with biases everywhere (Li et al. 2023)."""

    names = ("phi2",)
    architecture = GPTJ
    keys = gguf_keys(Key("eps", "attention.layer_norm_epsilon", "f32"), without=("window",))
    constants = PHI2_CONSTANTS
    tensors = {**DECODER_TENSORS, **NORM_BIAS_TENSORS, **OPTIONALLY_FUSED_QKV_TENSORS, "output.bias": "output.bias"}
    allows_partial_rotary = True
