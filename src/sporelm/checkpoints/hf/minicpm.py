"""Hugging Face folders of MiniCPM 1 and 2."""

from dataclasses import replace
from typing import Any, TypeVar

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.minicpm import MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import MAX_WIDTH, ModelConfig

Config = TypeVar("Config", bound=ModelConfig)


def with_depth_scales(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the scales for a depth and a base width."""
    depth = values.number("scale_depth", MIN_SCALE, MAX_SCALE, 1.0)
    base = values.number("dim_model_base", 1, MAX_WIDTH, 1.0)
    scales = replace(config.scales, residual=depth / config.layers**0.5, logits=config.width / base)
    return replace(config, scales=scales)


def depth_scale_json(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of these scales."""
    depth = config.scales.residual * config.layers**0.5
    return {"scale_depth": round(depth, 6), "dim_model_base": round(config.width / config.scales.logits, 3)}


@register
class MiniCPMForCausalLM(HfSchema):
    """MiniCPM."""

    model_type = "minicpm"
    architecture = Llama
    keys = hf_keys(Key("scales.embedding", "scale_emb", "f32", MIN_SCALE, MAX_SCALE, 1.0), *HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"tie_word_embeddings": True}
    supported = {"hidden_act": ("silu",), "sparse_config": (None,), "num_experts": (0,)}
    tensors = DECODER_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_depth_scales(super().config_from_json(values, dtype), values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return depth_scale_json(config)
