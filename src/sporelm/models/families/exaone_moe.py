"""K-EXAONE: EXAONE 4's windows and norms of heads, norms in front, DeepSeek V3's mixture after the first layers."""

from dataclasses import replace

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.exaone4 import fourth, unrotated, windowed
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import (
    MLP,
    V3_CHOICE,
    choice_bias_name,
    expert_fields,
    expert_names,
    shared_names,
    with_leading,
)
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HEAD_NORMS, HF, Kind, changed

DEFAULTS = {
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


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """GGUF files have the width of the block that every token goes through besides the number of its parts."""
    experts = config.experts
    assert experts is not None
    if kind != HF:
        return config
    return replace(windowed(config, values), experts=replace(experts, shared_ffn=experts.shared * experts.ffn))


@architecture(
    Family(
        "exaone-moe",
        (
            HfClass(
                "ExaoneMoeForCausalLM",
                "exaone_moe",
                DEFAULTS,
                (("sliding_window", "window"), ("norm_topk_prob", "experts.renormalize")),
            ),
            HfClass("ExaoneMoEForCausalLM", "exaone_moe", DEFAULTS),
        ),
        fields(
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="num_shared_experts",
                shared_ffn="",
                leading="first_k_dense_replace",
                scale="routed_scaling_factor",
                renormalize="norm_topk_prob",
                groups="n_group",
                top_groups="topk_group",
                scores="",
            )
        ),
        changed(
            COMMON, *HEAD_NORMS, *expert_names(), *shared_names(), choice_bias_name(f"{MLP}e_score_correction_bias")
        ),
        fixed=V3_CHOICE,
        finish=_finished,
        reworded=with_leading,
        unsaid=unrotated,
        full_layers=fourth,
        ignored=("mtp.*",),
        tells_layers=True,
        further_layers=True,
    )
)
class ExaoneMoe(Decoder):
    """The Llama layer with a mixture; layers that see all positions know none (LG AI Research 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        window = config.window_of(index)
        rotates = config.window is None or window is not None
        return pre_norm(config, index, Attention(f"layers.{index}", config, window, norm="heads", rotates=rotates))
