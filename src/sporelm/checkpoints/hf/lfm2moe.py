"""Hugging Face folders of LFM2 with experts."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.lfm2moe import LFM2_ROUTING
from sporelm.checkpoints.hf.lfm2 import LFM2_DEFAULTS, LFM2_HF_KEYS, LFM2_TENSORS, MLP, layer_types_json
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import choice_bias_tensors, expert_tensors
from sporelm.checkpoints.lfm2_layers import with_attention_layers
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.lfm2 import Lfm2, Lfm2Config
from sporelm.models.config import ModelConfig


@register
class Lfm2MoeForCausalLM(HfSchema):
    """LFM2 with a mixture of experts after the first layers."""

    model_type = "lfm2_moe"
    architecture = Lfm2
    keys = hf_keys(
        *LFM2_HF_KEYS,
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            leading="num_dense_layers",
            renormalize="norm_topk_prob",
            scale="routed_scaling_factor",
        ),
        Key("experts.choice_bias", "use_expert_bias", "bool"),
    )
    class_keys = {"norm_topk_prob": "experts.renormalize", "use_expert_bias": "experts.choice_bias"}
    defaults = {
        **LFM2_DEFAULTS,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "norm_topk_prob": True,
        "use_expert_bias": True,
    }
    constants = LFM2_ROUTING
    supported = {"conv_bias": (False,)}
    tensors = LFM2_TENSORS | expert_tensors(MLP, ("w1", "w3", "w2")) | choice_bias_tensors(f"{MLP}expert_bias")

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        tied = values.get("tie_embedding", values.get("tie_word_embeddings"))
        values = values.with_changes({"tie_word_embeddings": tied})
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Lfm2Config)
        return with_attention_layers(config, values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return layer_types_json(config)
