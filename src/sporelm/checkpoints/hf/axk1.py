"""Hugging Face folders of A.X K1."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_HF_KEYS, with_leading_dense_layers
from sporelm.checkpoints.gguf.axk1 import AXK1_CONSTANTS
from sporelm.checkpoints.hf.deepseek2 import DEEPSEEK_V3_DEFAULTS, RENORMALIZE_KEY
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    LAYER,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.axk1 import AXK1
from sporelm.models.config import ModelConfig

POST_MLP_NORM: Final = f"{LAYER}post_mlp_layernorm.weight"


@register
class AXK1ForCausalLM(LatentHfSchema):
    """A.X K1. Folders have the norm after the feed-forward block for dense layers too; it is not used."""

    model_type = "axk1"
    architecture = AXK1
    keys = hf_keys(*LATENT_HF_KEYS, *V3_HF_KEYS)
    class_keys = RENORMALIZE_KEY
    defaults = {
        **DEEPSEEK_V3_DEFAULTS,
        "n_routed_experts": 192,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 32768,
    }
    constants = AXK1_CONSTANTS
    supported = {
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "moe_layer_freq": (1,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
    }
    tensors = {
        **DECODER_TENSORS,
        **LATENT_HF_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(),
        "layers.{}.ffn_post_norm.weight": POST_MLP_NORM,
    }
    ignored_tensors = (POST_MLP_NORM,)
    reads_rope_interleave = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return super().config_from_json(with_leading_dense_layers(values), dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**super().extra_json(config), "num_nextn_predict_layers": 0}
