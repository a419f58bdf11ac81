"""GGUF files of Hy3."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys, with_experts_where_routers_are
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Squeeze
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig

HY_ROUTING: Final = {**V3_ROUTING, "experts.renormalize": True}


def with_shared_width(config: ModelConfig, width: int) -> ModelConfig:
    """Return the configuration with the width of the shared expert."""
    experts = config.experts
    assert experts is not None
    return replace(config, experts=replace(experts, shared_ffn=width, shared=max(1, width // experts.ffn)))


@register
class HyV3Gguf(GgufSchema):
    """`hy_v3`: Qwen3's attention with DeepSeek V3's choice of experts (Tencent 2026)."""

    names = ("hy_v3",)
    architecture = Qwen3
    keys = gguf_keys(
        *gguf_expert_keys("count", "used", "ffn", "shared_ffn", "leading", "scale", "renormalize", "scores")
    )
    constants = HY_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        CHOICE_BIAS: StoredAs("blk.{}.exp_probs_b", Squeeze((0,), optional=True)),
    }
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        experts = config.experts
        assert experts is not None
        config = with_shared_width(config, experts.shared_ffn or experts.ffn)
        return with_experts_where_routers_are(config, gguf.shapes)
