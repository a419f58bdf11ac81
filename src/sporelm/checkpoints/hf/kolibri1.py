"""Hugging Face folders of Kolibri 1."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.kolibri1 import KOLIBRI_ROUTING, WINDOW_STEP, without_rotation_in_full_layers
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    LAYER,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.hf_windows import every_nth_layer, list_attention_types, with_windows
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.kolibri1 import Kolibri1
from sporelm.models.config import ModelConfig

EXPERT_WIDTH: Final = "moe_intermediate_size"


@register
class Kolibri1ForCausalLM(HfSchema):
    """Kolibri 1."""

    model_type = "kolibri1"
    architecture = Kolibri1
    keys = hf_keys(
        Key("ffn", EXPERT_WIDTH, "u32"),
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn=EXPERT_WIDTH,
            shared_ffn="shared_expert_intermediate_size",
            renormalize="norm_topk_prob",
        ),
    )
    class_keys = {"sliding_window": "window", "norm_topk_prob": "experts.renormalize"}
    defaults = {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 384,
        "num_experts_per_tok": 6,
        EXPERT_WIDTH: 512,
        "shared_expert_intermediate_size": 512,
        "max_position_embeddings": 262144,
    }
    constants = KOLIBRI_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(f"{LAYER}moe.router.expert_bias"),
        "layers.{}.attn_post_norm.weight": f"{LAYER}post_attn_norm.weight",
        "layers.{}.ffn_post_norm.weight": f"{LAYER}post_ffn_norm.weight",
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = with_windows(super().config_from_json(values, dtype), values, WINDOW_STEP, window=513)
        return without_rotation_in_full_layers(config)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"layer_types": list_attention_types(config)}
