"""GGUF files of Ling 2 and Ring 2."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    FUSED_QKV_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bailingmoe2 import BailingMoe2

BAILING2_EXPERT_ATTRIBUTES: Final = (
    *("count", "used", "ffn", "shared", "leading", "scale", "renormalize", "groups"),
    *("top_groups", "scores"),
)
BAILING2_ROUTING: Final = {**V3_ROUTING, "experts.renormalize": True}


@register
class BailingMoe2Gguf(GgufSchema):
    """`bailingmoe2`. Queries, keys and values are fused into one tensor."""

    names = ("bailingmoe2",)
    architecture = BailingMoe2
    keys = gguf_keys(*gguf_expert_keys(*BAILING2_EXPERT_ATTRIBUTES))
    constants = BAILING2_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **{name: row for name, row in FUSED_QKV_TENSORS.items() if name.endswith("weight")},
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
    }
    allows_partial_rotary = True
    has_mtp_layers = True
