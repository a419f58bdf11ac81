"""DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash, Youtu-LLM: latent attention, and mixtures of experts after dense
layers, or dense layers alone."""

from dataclasses import replace

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import (
    FUSED_EXPERTS,
    V3_FIELDS,
    choice_bias_name,
    expert_fields,
    expert_names,
    not_in_all,
    shared_names,
)
from sporelm.checkpoints.family import Family, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import COMMON, GGUF, HF, Kind, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.deepseek_words import CLASSES, V2, YOUTU, chosen, reworded, said, words
from sporelm.models.registry import architecture

METHODS = ("greedy", "group_limited_greedy", "noaux_tc", None)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config, experts = latent.finished(config, values, kind), config.experts
    if config.architecture != V2:
        config = latent.turned(config, values, kind)
    if experts is None:
        return config
    if config.architecture == YOUTU:
        raise UnsupportedModel(f"{values.where}: {YOUTU} with n_routed_experts is not supported")
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
    # V2's groups are as good as their best expert, as its makers have it; llama.cpp adds up the best two for all.
    return replace(config, experts=replace(experts, group_score="sum_of_two" if sigmoid else "max", epsilon=1e-20))


@architecture(
    Family(
        "deepseek2",
        CLASSES,
        fields(
            *latent.LATENT_FIELDS,
            *not_in_all(V3_FIELDS),
            *expert_fields(scores="scoring_func", choice_bias=""),
            without=("window",),
        ),
        changed(COMMON, *latent.LATENT_NAMES, *expert_names(), *shared_names(), choice_bias_name()),
        others={"gguf": (*latent.UNSPLIT, *FUSED_EXPERTS)},
        fixed={"rope_style": "adjacent"},
        only={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,), "moe_layer_freq": (1,)},
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=reworded,
        said=said,
        choose=chosen,
        words=words,
        unsaid=latent.unsaid_of_turned,
        partial_rotary=True,
        further_layers=True,
        own=latent.LatentShape,
    )
)
class Deepseek2(Decoder):
    """Latent attention, then a mixture or, in the first layers, a dense block (DeepSeek-AI 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config))
