"""GGUF files of GLM-4.5, GLM-4.6 and Solar Open."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.expert_keys import V3_GGUF_KEYS, V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    POST_ATTENTION_AS_FFN_NORM,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.glm4moe import Glm4Moe


@register
class Glm4MoeGguf(GgufSchema):
    """`glm4moe`."""

    names = ("glm4moe",)
    architecture = Glm4Moe
    keys = gguf_keys(
        *V3_GGUF_KEYS,
        *gguf_expert_keys("scores"),
        Key("has_head_norms", "", "bool", tensor="layers.{}.attn_q_norm.weight"),
    )
    constants = V3_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        **POST_ATTENTION_AS_FFN_NORM,
    }
    allows_partial_rotary = True
    has_mtp_layers = True
