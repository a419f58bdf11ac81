"""Hugging Face folders of Flint."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.flint import FLINT_ROUTING, usual_full_layers
from sporelm.checkpoints.hf.qwen2moe import read_mlp_only_layers
from sporelm.checkpoints.hf.qwen3moe import with_num_experts
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    MLP,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.hf_windows import list_attention_types, read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.flint import Flint
from sporelm.models.config import MAX_LAYERS, ModelConfig

DEFAULT_DENSE_LAYERS: Final = (0, 1)


@register
class FlintForCausalLM(HfSchema):
    """Flint. transformers 5 writes the attention sinks under another name."""

    model_type = "flint"
    architecture = Flint
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared_ffn="shared_expert_intermediate_size",
            renormalize="norm_topk_prob",
        ),
        *HF_ATTENTION_BIAS,
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "sliding_window": "window",
        "norm_topk_prob": "experts.renormalize",
    }
    defaults = {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "num_experts": 256,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": 1024,
    }
    constants = FLINT_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        "layers.{}.attn_sinks.weight": f"{ATTENTION}softmax_offset",
        **expert_tensors(),
        **shared_expert_tensors(f"{MLP}shared_expert."),
    }
    resaved_names = ((".self_attn.softmax_offset", ".self_attn.sinks"),)
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return usual_full_layers(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_num_experts(values)
        config = super().config_from_json(values, dtype)
        experts, layers = config.experts, config.layers
        assert experts is not None
        has_layer_types = values.has("layer_types")
        full_layers = read_full_layers(values, layers) if has_layer_types else usual_full_layers(layers)
        window = read_window(values, "sliding_window", 513)
        if window is None:
            raise UnsupportedModel(f"{values.where}: sliding_window is null, so no layer would have rotary positions")
        step = values.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
        dense = read_mlp_only_layers(values, DEFAULT_DENSE_LAYERS)
        dense |= {layer for layer in range(layers) if (layer + 1) % step}
        experts = replace(experts, dense=dense & {*range(layers)})
        return replace(config, window=window, full_layers=full_layers, experts=experts)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        layers, experts = range(config.layers), config.experts
        return {
            "layer_types": list_attention_types(config),
            "mlp_only_layers": [layer for layer in layers if not (experts and experts.at(layer))],
            "decoder_sparse_step": 1,
        }
