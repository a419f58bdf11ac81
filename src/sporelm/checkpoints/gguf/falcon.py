"""GGUF files of Falcon."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.falcon import Falcon
from sporelm.models.config import ModelConfig


@register
class FalconGguf(GgufSchema):
    """`falcon`. With two norms, the norm of the feed-forward block has the name that the only norm has otherwise."""

    names = ("falcon",)
    architecture = Falcon
    keys = gguf_keys(
        Key("kv_heads", "attention.head_count_kv", "u32"),
        Key("ffn", "feed_forward_length", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("has_two_norms", "", "bool", tensor="layers.{}.attn_norm_2.weight"),
        without=("head_dim", "window"),
    )
    constants = {"parallel": True}
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **FUSED_QKV_TENSORS,
        **{
            f"layers.{{}}.{name}_norm{end}.{part}": f"blk.{{}}.{stored}.{part}"
            for name, end, stored in (
                ("attn", "_2", "attn_norm_2"),
                ("ffn", "", "attn_norm"),
                ("middle", "", "ffn_norm"),
            )
            for part in ("weight", "bias")
        },
    }

    def find_unsupported(self, config: ModelConfig) -> str:
        is_usual = config.parallel and not (config.alibi or config.mlp_bias)
        return "" if is_usual else "it has ALiBi, biases or sequential blocks"
