"""LFM2: gated short convolutions, with a layer of attention here and there."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import stacked
from sporelm.checkpoints.tensor_names import COMMON, Kind, Names, Stored, Table, changed
from sporelm.models.blocks import Attention, Layer, ShortConv, feed_forward, pre_norm
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import attention_layers, by_key_heads, key_heads
from sporelm.models.registry import architecture

LAYER = "model.layers.{}."
MOST_TAPS = 64
KINDS = ("conv", "full_attention")


@dataclass(frozen=True)
class ConvLayers:
    """What only this family has."""

    taps: int
    attention: frozenset[int] = frozenset()  # the layers that are attention


def _renamed(ours: str, gguf: str, hf: str) -> Names:
    return Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{LAYER}{hf}.weight")


FIELDS = (
    Field("own.taps", "shortconv.l_cache", "u32", "conv_L_cache", 2, MOST_TAPS),
    Field("eps", "attention.layer_norm_rms_epsilon", "f32", "norm_eps"),
)
WIDTHS = [lambda config: config.width] * 3
NAMES: Table = changed(
    COMMON,
    Names("output_norm.weight", "token_embd_norm.weight", "model.embedding_norm.weight"),
    _renamed("attn_norm", "attn_norm", "operator_norm"),
    _renamed("ffn_norm", "ffn_norm", "ffn_norm"),
    _renamed("attn_o", "attn_output", "self_attn.out_proj"),
    *(_renamed(f"attn_{part}_norm", f"attn_{part}_norm", f"self_attn.{part}_layernorm") for part in "qk"),
    *(_renamed(f"ffn_{ours}", f"ffn_{ours}", f"feed_forward.{hf}") for ours, hf in (("gate", "w1"), ("up", "w3"))),
    _renamed("ffn_down", "ffn_down", "feed_forward.w2"),
    *(
        Names(
            f"layers.{{}}.conv_{part}.weight",
            Stored("blk.{}.shortconv.in_proj.weight", rows=stacked(number, *WIDTHS)),
            Stored(f"{LAYER}conv.in_proj.weight", rows=stacked(number, *WIDTHS)),
        )
        for number, part in enumerate("bcx")
    ),
    _renamed("conv_o", "shortconv.out_proj", "conv.out_proj"),
    Names(
        "layers.{}.short_conv.weight",
        Stored("blk.{}.shortconv.conv.weight", transposed=True),
        Stored(f"{LAYER}conv.conv.weight", transposed=True, between=True),
    ),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The width of the feed-forward block as it is, and which layers are attention, in one way."""
    ffn = values.get("block_ff_dim", values.get("intermediate_size"))
    of, factor = values.get("block_multiple_of", 256), values.get("block_ffn_dim_multiplier", 1.0)
    if values.get("block_auto_adjust_ff_dim", True) and type(ffn) is int and type(of) is int and of > 0:
        ffn = 2 * ffn // 3
        known = isinstance(factor, int | float) and 0 < factor < 1e3 and ffn <= MOST_WIDTH
        ffn = int(factor * ffn) if known else ffn
        ffn = of * -(-ffn // of)
    tied = values.get("tie_embedding", values.get("tie_word_embeddings", True))
    return {**values, "intermediate_size": ffn, "tie_word_embeddings": tied}


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers are attention."""
    told, listed = values.values.get("layer_types"), values.values.get("full_attn_idxs")
    if told is None and isinstance(listed, list):
        told = [KINDS[layer in listed] for layer in range(config.layers)]
    attention = attention_layers(values, told or [KINDS[1]] * config.layers, config.layers)
    return replace(config, own=replace(config.own, attention=attention))


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    kinds = [KINDS[layer in config.own.attention] for layer in range(config.layers)]
    return {"layer_types": kinds, "block_auto_adjust_ff_dim": False}


NUMBERS = {"num_key_value_heads": 8, "conv_L_cache": 3, "rope_theta": 1e6, "norm_eps": 1e-5}
NUMBERS |= {"tie_word_embeddings": True, "max_position_embeddings": 128000}


@architecture(
    Family(
        "lfm2",
        (HfClass("Lfm2ForCausalLM", "lfm2", NUMBERS),),
        fields(*FIELDS),
        NAMES,
        only={"conv_bias": (False,)},
        finish=finished,
        words=words,
        said=lambda config: key_heads(config, "lfm2", config.own.attention),
        regrouped=by_key_heads,
        reworded=_reworded,
        own=ConvLayers,
    )
)
class Lfm2(Decoder):
    """The Llama layer with norms of heads, a short convolution in the place of most of its attention."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attends = index in config.own.attention
        attention = Attention(name, config, config.window_of(index), norm="heads") if attends else None
        mixer = attention or ShortConv(name, config, config.own.taps)
        return pre_norm(config, index, mixer, feed_forward(name, config, index))
