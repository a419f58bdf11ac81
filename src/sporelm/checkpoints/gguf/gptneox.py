"""GGUF files of GPT-NeoX, Pythia and Dolly 2."""

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, Key, activation_key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gptneox import GPTNeoX


@register
class GptNeoXGguf(GgufSchema):
    """`gptneox`."""

    names = ("gptneox",)
    architecture = GPTNeoX
    keys = gguf_keys(
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("parallel", "use_parallel_residual", "bool", default=True),
        activation_key(GGUF_ACTIVATION_KEY, "gelu"),
        without=("kv_heads", "head_dim", "window"),
    )
    constants = {"mlp_bias": True}
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS | FUSED_QKV_TENSORS
    allows_partial_rotary = True
