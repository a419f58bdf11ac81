"""DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash: latent attention, and mixtures of experts after dense layers."""

from dataclasses import replace
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights import latent
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import (
    FUSED_EXPERTS,
    V3_FIELDS,
    choice_bias_name,
    expert_fields,
    expert_names,
    shared_names,
    with_leading,
)
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields, shown
from sporelm.weights.names import COMMON, GGUF, HF, Kind, changed

V2, V3, GLM = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"
# What transformers takes where config.json is silent.
SHAPE = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}
GREEDY: dict[str, Any] = {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407}
GREEDY |= {"topk_method": "greedy"}
METHODS = ("greedy", "group_limited_greedy", "noaux_tc", None)
BIASED: dict[str, Any] = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
BIASED |= {"n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "norm_topk_prob": True}
BIASED |= {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "max_position_embeddings": 4096}
LITE = BIASED | {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64}
LITE |= {"moe_intermediate_size": 1536, "num_experts_per_tok": 4, "first_k_dense_replace": 1, "n_group": 1}
LITE |= {"topk_group": 1, "routed_scaling_factor": 1.8, "max_position_embeddings": 202752, "rms_norm_eps": 1e-5}
CLASSES = tuple(
    HfClass(name, model_type, {**SHAPE, **defaults}, (("norm_topk_prob", "experts.renormalize"),))
    for name, model_type, defaults in (
        (V2, "deepseek_v2", GREEDY),
        (V3, "deepseek_v3", BIASED),
        (GLM, "glm4_moe_lite", LITE),
    )
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Which layers are dense, as a list in GLM's; V2's are chosen from all groups unless it says so."""
    found = latent.reworded(values)
    if values.get("topk_method") == "greedy":
        found |= {"n_group": 0, "topk_group": 0}
    return with_leading(found)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config, experts = latent.finished(config, values, kind), config.experts
    assert experts is not None
    sigmoid = experts.scores == "sigmoid"
    if kind == GGUF and experts.choice_bias and not values.values.get("expert_gating_func"):
        sigmoid = True  # which files of GLM-4.7-Flash do not say: a bias goes with no other scores here
        experts = replace(experts, scores="sigmoid")
    if kind == HF:
        if (method := values.values.get("topk_method")) not in METHODS:
            known = ", ".join(str(each) for each in METHODS if each)
            raise UnsupportedModel(f"{values.where}: topk_method {shown(method)} is not supported; {known} are")
        if config.architecture == V2 and (sigmoid or experts.renormalize):
            raise UnsupportedModel(f"{values.where}: {V2} with sigmoid scores or norm_topk_prob is not supported")
        experts = replace(experts, choice_bias=sigmoid)
        half = config.architecture != V2 and not values.flag("rope_interleave", True)
        config = replace(config, rope_style="half" if half else "adjacent")
    # V2's groups are as good as their best expert, as its makers have it; llama.cpp adds up the best two for all.
    return replace(config, experts=replace(experts, group_score="sum_of_two" if sigmoid else "max", epsilon=1e-20))


def _unsaid(config: ModelConfig) -> str:
    return "heads are rotated by half" if config.rope_style == "half" else latent.unsaid(config)


def _words(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    grouped = experts.groups > 1 and experts.scores == "softmax"
    method = "noaux_tc" if experts.scores == "sigmoid" else "group_limited_greedy" if grouped else "greedy"
    return {**latent.words(config), "topk_method": method, "num_nextn_predict_layers": 0}


@architecture(
    Family(
        "deepseek2",
        CLASSES,
        fields(
            *latent.LATENT_FIELDS,
            *V3_FIELDS,
            *expert_fields(scores="scoring_func", choice_bias=""),
            without=("window",),
        ),
        changed(COMMON, *latent.LATENT_NAMES, *expert_names(), *shared_names(), choice_bias_name()),
        others={"gguf": (*latent.UNSPLIT, *FUSED_EXPERTS)},
        fixed={"rope_style": "adjacent"},
        only={"hidden_act": ("silu",), "attention_bias": (False,), "moe_layer_freq": (1,)},
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=_reworded,
        said=lambda config: latent.said(config, "deepseek2", absorbed=True),
        choose=lambda config: V3 if config.experts and config.experts.scores == "sigmoid" else V2,
        words=_words,
        unsaid=_unsaid,
        partial_rotary=True,
        further_layers=True,
        own=latent.LatentShape,
    )
)
class Deepseek2(Decoder):
    """Latent attention, then a mixture or, in the first layers, a dense block (DeepSeek-AI 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config))
