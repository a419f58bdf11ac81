"""GGUF files of DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash and Youtu-LLM."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import GGUF_CHOICE_BIAS_KEY, V3_ATTRIBUTES, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LatentGgufSchema
from sporelm.checkpoints.latent_tensors import KV_B_GGUF_TENSORS, LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import with_alternatives
from sporelm.models.architectures.deepseek2 import Deepseek2
from sporelm.models.config import Experts, ModelConfig


def with_deepseek_routing(config: ModelConfig, experts: Experts) -> ModelConfig:
    """Return the configuration with these experts. V2 ranks groups by their best expert, as published; llama.cpp adds
    the best two for all models."""
    group_score = "sum_of_two" if experts.scores == "sigmoid" else "max"
    return replace(config, experts=replace(experts, group_score=group_score, epsilon=1e-20))


@register
class Deepseek2Gguf(LatentGgufSchema):
    """`deepseek2`."""

    names = ("deepseek2",)
    architecture = Deepseek2
    keys = gguf_keys(
        *LATENT_GGUF_KEYS,
        *gguf_expert_keys(*V3_ATTRIBUTES, optional=True),
        *gguf_expert_keys("scores"),
        GGUF_CHOICE_BIAS_KEY,
        without=("window",),
    )
    constants = {"rope_style": "adjacent"}
    tensors = {
        **DECODER_TENSORS,
        **with_alternatives(LATENT_GGUF_TENSORS, KV_B_GGUF_TENSORS),
        **expert_tensors(has_fused=True),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
    }
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        experts = config.experts
        if experts is None:
            return config
        # Files of GLM-4.7-Flash lack the score function. Models with a choice bias use sigmoid scores.
        if experts.choice_bias and not gguf.values.get("expert_gating_func"):
            experts = replace(experts, scores="sigmoid")
        return with_deepseek_routing(config, experts)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        found = super().extra_metadata(config)
        if config.experts is None:  # llama.cpp requires these keys
            found["deepseek2.leading_dense_block_count"] = "u32", config.layers
            found["deepseek2.expert_feed_forward_length"] = "u32", config.ffn
            found["deepseek2.expert_shared_count"] = "u32", 0
        return found
