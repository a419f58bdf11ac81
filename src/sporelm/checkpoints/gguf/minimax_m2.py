"""GGUF files of MiniMax-M2."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS_TENSORS, DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmoe import Olmoe

MINIMAX_ROUTING: Final = {**V3_ROUTING, "experts.renormalize": True, "experts.epsilon": 0.0}


@register
class MiniMaxM2Gguf(GgufSchema):
    """`minimax-m2`: norms of rows of queries and keys, and a mixture of experts (MiniMax 2025)."""

    names = ("minimax-m2",)
    architecture = Olmoe
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "scores"))
    constants = MINIMAX_ROUTING
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors() | CHOICE_BIAS_TENSORS
    allows_partial_rotary = True
