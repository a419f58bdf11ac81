"""Hugging Face folders of K-EXAONE."""

from collections.abc import Mapping
from dataclasses import replace

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_ROUTING, hf_expert_keys, with_leading_dense_layers
from sporelm.checkpoints.gguf.exaone4 import WINDOW_STEP
from sporelm.checkpoints.hf.exaone4 import with_exaone_windows
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    MLP,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.exaone_moe import ExaoneMoe
from sporelm.models.config import ModelConfig


@register
class ExaoneMoeForCausalLM(HfSchema):
    """K-EXAONE."""

    model_type = "exaone_moe"
    architecture = ExaoneMoe
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared="num_shared_experts",
            leading="first_k_dense_replace",
            scale="routed_scaling_factor",
            renormalize="norm_topk_prob",
            groups="n_group",
            top_groups="topk_group",
        )
    )
    class_keys: Mapping[str, str] = {"sliding_window": "window", "norm_topk_prob": "experts.renormalize"}
    defaults = {
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "norm_topk_prob": True,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
    }
    constants = V3_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(f"{MLP}e_score_correction_bias"),
    }
    ignored_tensors = ("mtp.*",)
    has_window_pattern = True
    has_mtp_layers = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_leading_dense_layers(values)
        config = with_exaone_windows(super().config_from_json(values, dtype), values)
        experts = config.experts
        assert experts is not None
        return replace(config, experts=replace(experts, shared_ffn=experts.shared * experts.ffn))


@register
class ExaoneMoEForCausalLM(ExaoneMoeForCausalLM):
    """The class name in the first folders."""

    class_keys = {}
