"""Hugging Face folders of Trinity."""

from dataclasses import replace
from math import sqrt
from typing import Any

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.afmoe import AFMOE_ROUTING, WINDOW_STEP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    LAYER,
    MLP,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.hf_windows import every_nth_layer, read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.afmoe import Afmoe
from sporelm.models.config import MAX_LAYERS, ModelConfig


@register
class AfmoeForCausalLM(HfSchema):
    """Trinity. `mup_enabled` scales the embedding."""

    model_type = "afmoe"
    architecture = Afmoe
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared="num_shared_experts",
            leading="num_dense_layers",
            scale="route_scale",
        )
    )
    class_keys = {"sliding_window": "window"}
    defaults = {
        "head_dim": 128,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "moe_intermediate_size": 1408,
        "num_dense_layers": 1,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "mup_enabled": False,
    }
    constants = AFMOE_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "n_group": (1,),
        "route_norm": (True,),
        "score_func": ("sigmoid",),
        "topk_group": (1,),
    }
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(f"{MLP}expert_bias"),
        "layers.{}.ffn_gate_inp.weight": f"{MLP}router.gate.weight",
        "layers.{}.attn_gate.weight": f"{ATTENTION}gate_proj.weight",
        "layers.{}.attn_post_norm.weight": f"{LAYER}post_attention_layernorm.weight",
        "layers.{}.ffn_norm.weight": f"{LAYER}pre_mlp_layernorm.weight",
        "layers.{}.ffn_post_norm.weight": f"{LAYER}post_mlp_layernorm.weight",
    }

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        step = values.integer("global_attn_every_n_layers", 1, MAX_LAYERS, WINDOW_STEP)
        full_layers = every_nth_layer(step)(config.layers)
        if values.has("layer_types"):
            full_layers = read_full_layers(values, config.layers)
        if values.flag("mup_enabled", False):
            config = replace(config, scales=replace(config.scales, embedding=sqrt(config.width)))
        return replace(config, window=read_window(values, "sliding_window", 1024), full_layers=full_layers)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"mup_enabled": config.scales.embedding != 1, "global_attn_every_n_layers": WINDOW_STEP}
