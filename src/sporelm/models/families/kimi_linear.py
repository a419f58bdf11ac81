"""Kimi Linear: three delta nets with a decay for each channel to one layer of latent attention without positions."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import V3_CHOICE, choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, GGUF, Kind, Names, Stored, Table, changed
from sporelm.models.blocks import DeltaNetShape, LatentAttention, Layer, SplitDeltaNet, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.delta_fields import KINDS, taps_apart
from sporelm.models.families.kimi_words import DEFAULTS, FIELDS, KimiShape, regrouped, reworded, said, unsaid, words
from sporelm.models.families.layer_kinds import attention_layers
from sporelm.models.registry import architecture

NET, MOE = "model.layers.{}.self_attn.", "model.layers.{}.block_sparse_moe."
FLAGS = (("moe_renormalize", "experts.renormalize"),)


def _named(ours: str, gguf: str, hf: str) -> Names:
    return Names(f"layers.{{}}.delta{ours}", f"blk.{{}}.{gguf}", f"{NET}{hf}")


def _pair(ours: str, theirs: str) -> Table:
    """Two narrow products, one after the other."""
    return (
        _named(f"_{ours}_a.weight", f"ssm_{theirs}_a.weight", f"{theirs}_a_proj.weight"),
        _named(f"_{ours}.weight", f"ssm_{theirs}_b.weight", f"{theirs}_b_proj.weight"),
    )


LOGS = Stored(f"{NET}A_log", log=True, between=True, above=2)
DELTA: Table = (
    *(_named(f"_{part}.weight", f"attn_{part}.weight", f"{part}_proj.weight") for part in "qkv"),
    *taps_apart(NET),
    *_pair("alpha", "f"),
    *_pair("z", "g"),
    _named("_beta.weight", "ssm_beta.weight", "b_proj.weight"),
    Names("layers.{}.delta.decay", Stored("blk.{}.ssm_a", between=True), LOGS),
    _named("_dt.bias", "ssm_dt.bias", "dt_bias"),
    _named("_norm.weight", "ssm_norm.weight", "o_norm.weight"),
    _named("_o.weight", "attn_output.weight", "o_proj.weight"),
)
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "mla_use_nope": (True,), "moe_layer_freq": (1,)}
ONLY |= {"attention_bias": (False,), "use_grouped_topk": (True,), "num_nextn_predict_layers": (0,)}
ONLY |= {"moe_router_activation_func": ("sigmoid",)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    usual = [KINDS[layer > 0 and layer % 4 == 0] for layer in range(config.layers)]  # of transformers
    attention = attention_layers(values, values.values.get("layer_types") or usual, config.layers)
    config = latent.finished(config, values, kind)
    own = replace(config.own, attention=attention, delta_heads=config.own.delta_heads or config.heads)
    return replace(config, own=own)


@architecture(
    Family(
        "kimi-linear",
        (HfClass("KimiLinearForCausalLM", "kimi_linear", DEFAULTS, FLAGS),),
        fields(
            *latent.LATENT_FIELDS,
            *FIELDS,
            *expert_fields(
                count="num_experts",
                used="num_experts_per_token",
                ffn="moe_intermediate_size",
                shared="num_shared_experts",
                leading="first_k_dense_replace",
                scale="routed_scaling_factor",
                renormalize="moe_renormalize",
                groups="num_expert_group",
                top_groups="topk_group",
                scores="moe_router_activation_func",
            ),
            without=("window", "rotary"),
        ),
        changed(
            COMMON,
            *latent.LATENT_NAMES,
            *expert_names(MOE, ("w1", "w3", "w2")),
            *shared_names(f"{MOE}shared_experts."),
            choice_bias_name(f"{MOE}gate.e_score_correction_bias"),
            *DELTA,
        ),
        others={GGUF: latent.UNSPLIT},
        fixed={"rotary": 0, "experts.renormalize": True, **V3_CHOICE},
        only=ONLY,
        positions="model_max_length",
        finish=_finished,
        reworded=reworded,
        regrouped=regrouped,
        said=said,
        words=words,
        unsaid=unsaid,
        own=KimiShape,
        resaved=((".mlp.", ".block_sparse_moe."),),  # dense layers too
        modules=((".block_sparse_moe.", ".mlp."), (".self_attn.f_", ".self_attn.forget_gate.f_")),
    )
)
class KimiLinear(Decoder):
    """DeepSeek V3's layer; a delta net with a decay for each channel in place of most of its attention."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        own: KimiShape = config.own
        if index in own.attention:
            return pre_norm(config, index, LatentAttention(f"layers.{index}", config, config.own))
        heads, dim = own.delta_heads, own.delta_dim
        narrow = {"alpha": dim, "z": dim}
        numbers = DeltaNetShape(own.taps, heads, heads, dim, dim, heads * dim)
        return pre_norm(
            config, index, SplitDeltaNet(f"layers.{index}", config, numbers, decays_channels=True, ranks=narrow)
        )
