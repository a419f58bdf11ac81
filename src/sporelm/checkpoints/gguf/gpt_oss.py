"""GGUF files of gpt-oss."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, POST_ATTENTION_AS_FFN_NORM
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gpt_oss import GptOss

GPT_OSS_ROUTING: Final = {
    "experts.scores": "softmax_of_chosen",
    "experts.bias": True,
    "experts.clamp": (1.702, 7.0),
}


@register
class GptOssGguf(GgufSchema):
    """`gpt-oss`. The ends of YaRN's ramp are not rounded."""

    names = ("gpt-oss",)
    architecture = GptOss
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn"))
    constants = GPT_OSS_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **POST_ATTENTION_AS_FFN_NORM,
        "layers.{}.attn_sinks.weight": "blk.{}.attn_sinks.weight",
        **{
            f"layers.{{}}.ffn_{name}.{part}": f"blk.{{}}.ffn_{name}.{part}"
            for name in ("gate_inp", "gate_exps", "up_exps", "down_exps")
            for part in ("weight", "bias")
        },
    }
    has_window_pattern = True
    yarn_truncates = False

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(2)(layers)
