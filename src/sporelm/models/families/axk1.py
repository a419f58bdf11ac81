"""A.X K1: DeepSeek V3's layer, with a norm of what its mixture adds."""

from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import (
    V3_CHOICE,
    V3_FIELDS,
    choice_bias_name,
    expert_fields,
    expert_names,
    shared_names,
    with_leading,
)
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, Kind, Names, changed
from sporelm.models.blocks import LatentAttention, Layer, RMSNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.deepseek_words import BIASED, FLAGS, SHAPE
from sporelm.models.registry import architecture

BEHIND = "model.layers.{}.post_mlp_layernorm.weight"
NUMBERS: dict[str, Any] = {"n_routed_experts": 192, "first_k_dense_replace": 1, "max_position_embeddings": 32768}
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "attention_bias": (False,), "moe_layer_freq": (1,)}
ONLY |= {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return latent.turned(latent.finished(config, values, kind), values, kind)


@architecture(
    Family(
        "axk1",
        (HfClass("AXK1ForCausalLM", "axk1", {**SHAPE, **BIASED, **NUMBERS}, FLAGS),),
        fields(*latent.LATENT_FIELDS, *V3_FIELDS, *expert_fields(scores="", choice_bias=""), without=("window",)),
        changed(
            COMMON,
            *latent.LATENT_NAMES,
            *expert_names(),
            *shared_names(),
            choice_bias_name(),
            Names("layers.{}.ffn_post_norm.weight", "blk.{}.post_ffw_norm.weight", BEHIND),
        ),
        fixed=V3_CHOICE | {"experts.choice_bias": False, "rope_style": "adjacent"},
        only=ONLY,
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=lambda values: with_leading(latent.reworded(values)),
        said=lambda config: latent.said(config, "axk1", absorbed=True),
        words=lambda config: {**latent.words(config), "num_nextn_predict_layers": 0},
        unsaid=latent.unsaid_of_turned,
        ignored=(BEHIND,),  # folders have one for dense layers too, which do without
        partial_rotary=True,
        own=latent.LatentShape,
    )
)
class AXK1(Decoder):
    """Latent attention, then a mixture that is normed, or, in the first layers, a dense block (SK Telecom 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, layer = f"layers.{index}", pre_norm(config, index, LatentAttention(f"layers.{index}", config))
        if config.experts is not None and config.experts.at(index):
            layer.after_mlp = RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps)
        return layer
