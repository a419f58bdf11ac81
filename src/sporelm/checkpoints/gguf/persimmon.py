"""GGUF files of Persimmon."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, HEAD_NORM_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.persimmon import Persimmon


@register
class PersimmonGguf(GgufSchema):
    """`persimmon`."""

    names = ("persimmon",)
    architecture = Persimmon
    keys = gguf_keys(
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("has_head_norms", "", "bool", default=True, tensor="layers.{}.attn_q_norm.weight"),
        without=("head_dim", "kv_heads", "window"),
    )
    constants = ALL_BIASES
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **FUSED_QKV_TENSORS,
        **HEAD_NORM_TENSORS,
        **{f"layers.{{}}.attn_{name}_norm.bias": f"blk.{{}}.attn_{name}_norm.bias" for name in "qk"},
    }
    allows_partial_rotary = True
