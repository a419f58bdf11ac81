"""GGUF files of StarCoder2."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.starcoder2 import StarCoder2


@register
class StarCoder2Gguf(GgufSchema):
    """`starcoder2`. llama.cpp reads no sliding window."""

    names = ("starcoder2",)
    architecture = StarCoder2
    keys = gguf_keys(Key("eps", "attention.layer_norm_epsilon", "f32"))
    constants = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS
    llama_cpp_has_window = False
