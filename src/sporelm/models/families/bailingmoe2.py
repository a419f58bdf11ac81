"""Ling 2 and Ring 2: Ling 1 with heads rotated by half and normed, and DeepSeek V3's choice of experts."""

from sporelm.checkpoints.experts import MLP, V3_CHOICE, choice_bias_name, expert_fields
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind, Names, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.bailingmoe import ATTENTION, bailing_names
from sporelm.models.registry import architecture

NORMS = tuple(
    Names(
        f"layers.{{}}.attn_{part}_norm.weight",
        f"blk.{{}}.attn_{part}_norm.weight",
        f"{ATTENTION}{word}_layernorm.weight",
    )
    for part, word in (("q", "query"), ("k", "key"))
)

EXPERTS = expert_fields(
    count="num_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    shared="num_shared_experts",
    leading="first_k_dense_replace",
    scale="routed_scaling_factor",
    renormalize="norm_topk_prob",
    groups="n_group",
    top_groups="topk_group",
    scores="",
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The block that every token goes through is as wide as its experts together."""
    assert config.experts is not None
    key = "moe_shared_expert_intermediate_size"
    if kind == HF and values.has(key) and values.values[key] != config.experts.shared_width:
        raise UnsupportedModel(f"{values.where}: {key} must be {config.experts.shared_width}, as wide as its experts")
    return config


@architecture(
    Family(
        "bailingmoe2",
        (HfClass("BailingMoeV2ForCausalLM", "bailing_moe", {"partial_rotary_factor": 0.5}),),
        fields(*EXPERTS),
        changed(bailing_names("blk.{}.attn_qkv"), *NORMS, choice_bias_name(f"{MLP}gate.expert_bias")),
        fixed=V3_CHOICE | {"experts.renormalize": True},
        only={
            "hidden_act": ("silu",),
            "norm_topk_prob": (True,),
            "score_function": ("sigmoid",),
            "moe_router_enable_expert_bias": (True,),
            "use_bias": (False,),
            "use_qk_norm": (True,),
            "use_qkv_bias": (False,),
        },
        finish=_finished,
        words=lambda config: {"num_nextn_predict_layers": 0},
        partial_rotary=True,
        further_layers=True,
    )
)
class BailingMoe2(Decoder):
    """The Llama layer; queries and keys are normed head by head, a mixture follows (Ling team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, norm="heads")
        return pre_norm(config, index, attention)
