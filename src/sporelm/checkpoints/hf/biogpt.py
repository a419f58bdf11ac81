"""Hugging Face folders of BioGPT."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_keys import Key, activation_key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.biogpt import BIOGPT_CONSTANTS, EPS
from sporelm.checkpoints.hf.opt import opt_tensors
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.biogpt import ACTIVATIONS, BioGPT
from sporelm.models.config import ModelConfig


class ScaledEmbeddingHf(HfSchema):
    """Folders with a flag that scales the embedding by the square root of its width."""

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = replace(super().config_from_json(values, dtype), eps=EPS)
        if not values.flag("scale_embedding", True):
            return config
        return replace(config, scales=replace(config.scales, embedding=config.width**0.5))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"scale_embedding": config.scales.embedding != 1}


@register
class BioGptForCausalLM(ScaledEmbeddingHf):
    """BioGPT."""

    model_type = "biogpt"
    architecture = BioGPT
    keys = hf_keys(
        Key("eps", "", "f32"),
        activation_key("hidden_act", "gelu", ACTIVATIONS),
        without=("head_dim", "kv_heads"),
    )
    defaults = {"tie_word_embeddings": True, "max_position_embeddings": 1024}
    constants = BIOGPT_CONSTANTS
    supported = {}
    tensors = {**opt_tensors("biogpt.", "layer_norm"), "output.weight": "output_projection.weight"}
