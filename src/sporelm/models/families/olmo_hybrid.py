"""OLMo Hybrid: three gated delta nets, with norms in front, to one layer of OLMo 2 and 3."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.row_cuts import RowCut
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, POST_NORMS, Kind, Names, Stored, Table, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import DeltaHeads, Layer, SplitDeltaNet, pre_norm
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families import delta_fields
from sporelm.models.families.delta_fields import DELTA_FIELDS, taps_apart
from sporelm.models.families.olmo2 import normed_behind
from sporelm.models.registry import architecture

LAYER = "model.layers.{}."
NET = f"{LAYER}linear_attn."
EPS = 1e-5  # of the delta nets' norms, whatever the model's is


@dataclass(frozen=True)
class OlmoDelta(DeltaHeads):
    """Numbers of the delta nets."""

    turns: bool = True  # a row may turn what the state says of its key about: shares go up to 2


def _named(ours: str, gguf: str, hf: str, **form: Any) -> Names:
    return Names(f"layers.{{}}.{ours}", f"blk.{{}}.{gguf}", Stored(f"{LAYER}{hf}", **form))


NAMES: Table = changed(
    COMMON,
    *HEAD_NORMS,
    *POST_NORMS,
    _named("attn_norm.weight", "attn_norm.weight", "attention_layer_norm.weight"),
    _named("ffn_norm.weight", "ffn_norm.weight", "feedforward_layer_norm.weight"),
    *(_named(f"delta_{part}.weight", f"attn_{part}.weight", f"linear_attn.{part}_proj.weight") for part in "qkv"),
    *taps_apart(NET),
    _named("delta_alpha.weight", "ssm_alpha.weight", "linear_attn.a_proj.weight"),
    _named("delta_beta.weight", "ssm_beta.weight", "linear_attn.b_proj.weight"),
    _named("delta_z.weight", "attn_gate.weight", "linear_attn.g_proj.weight"),
    _named("delta.decay", "ssm_a", "linear_attn.A_log", log=True),
    _named("delta_dt.bias", "ssm_dt.bias", "linear_attn.dt_bias"),
    _named("delta_norm.weight", "ssm_norm.weight", "linear_attn.o_norm.weight"),
    _named("delta_o.weight", "ssm_out.weight", "linear_attn.o_proj.weight"),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """What follows from the shape where config.json is silent; an unknown rotary base beside the others."""
    if "rope_parameters" in values and values["rope_parameters"] is None:
        why = "may mean positions that are rotated or not; give it a rope_theta, null for none"
        raise UnsupportedModel(f"rope_parameters is null, which {why}")
    heads, width = values.get("num_attention_heads"), values.get("hidden_size")
    found = {**values, "head_dim": None}
    for part in ("key", "value"):
        if found.get(name := f"linear_num_{part}_heads") is None:
            found[name] = heads
    keys = found["linear_num_key_heads"]
    if found.get("linear_key_head_dim") is None and all(type(each) is int and each > 0 for each in (keys, width)):
        found["linear_key_head_dim"] = 3 * min(width, MOST_WIDTH) // (4 * keys)  # type: ignore[type-var, operator]
    dim = found.get("linear_key_head_dim")
    if found.get("linear_value_head_dim") is None and type(dim) is int:
        found["linear_value_head_dim"] = 2 * dim
    return found


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = delta_fields.finished(config, values, kind)
    if values.values.get("layer_types") is None and not config.own.attention:  # of fewer layers than four, the last one
        config = replace(config, own=replace(config.own, attention=frozenset({config.layers - 1})))
    rope: Any = values.values.get("rope_parameters") or {}
    holder = rope if "rope_theta" in rope else values.values
    unrotated = kind == HF and "rope_theta" in holder and holder["rope_theta"] is None
    return replace(config, rotary=0) if unrotated else config


def _row_cuts(config: ModelConfig) -> list[RowCut]:
    """The taps of queries, keys and values, which transformers joins in memory and saves in three equal parts."""
    own: OlmoDelta = config.own
    keys = own.key_heads * own.key_dim
    layers = [layer for layer in range(config.layers) if layer not in own.attention]
    names = [[f"{NET}{part}_conv1d.weight".replace("{}", str(layer)) for part in "qkv"] for layer in layers]
    return [RowCut(each, (keys, keys, own.inner)) for each in names]


@architecture(
    Family(
        "olmo-hybrid",
        (
            HfClass(
                "OlmoHybridForCausalLM", "olmo_hybrid", {"max_position_embeddings": 65536, "linear_conv_kernel_dim": 4}
            ),
        ),
        fields(
            *ATTENTION_BIAS,
            *(each for each in DELTA_FIELDS if each.ours != "own.interval"),
            Field("own.turns", "", "bool", "linear_allow_neg_eigval", default=True),
        ),
        NAMES,
        finish=_finished,
        reworded=_reworded,
        unsaid=lambda config: "no GGUF architecture means its layers",
        own=OlmoDelta,
        row_cuts=_row_cuts,
        resaved=((".post_attention_layernorm.", ".feedforward_layer_norm."),),  # of layers of attention too
    )
)
class OlmoHybrid(Decoder):
    """x + delta(norm(x)), x + mlp(norm(x)); in every fourth layer x + norm(attention(x)), x + norm(mlp(x))."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own = f"layers.{index}", config.own
        if index not in own.attention:
            return pre_norm(config, index, SplitDeltaNet(name, config, own, most=1.0 + own.turns, eps=EPS))
        return normed_behind(config, index)
