"""Falcon: attention and feed-forward block beside each other; Falcon-RW: in turn, with biases and linear biases."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, ParallelLayer
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import SLOPES
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.forms import BY_GROUP, qkv_names
from sporelm.weights.names import COMMON, HF, Kind, Names, changed, with_bias

LAYER = "transformer.h.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.word_embeddings.weight"),
    *with_bias("output_norm", "output_norm", "transformer.ln_f"),
    *with_bias("layers.{}.attn_norm", "blk.{}.attn_norm", f"{LAYER}input_layernorm"),
    # Where there are two norms, GGUF files call that of the feed-forward block what else is that of both.
    *with_bias("layers.{}.attn_norm_2", "blk.{}.attn_norm_2", f"{LAYER}ln_attn"),
    *with_bias("layers.{}.ffn_norm", "blk.{}.attn_norm", f"{LAYER}ln_mlp"),
    *with_bias("layers.{}.middle_norm", "blk.{}.ffn_norm", f"{LAYER}post_attention_layernorm"),  # of blocks in turn
    *with_bias("layers.{}.attn_o", "blk.{}.attn_output", f"{LAYER}self_attention.dense"),
    *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{LAYER}mlp.dense_h_to_4h"),
    *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{LAYER}mlp.dense_4h_to_h"),
    *qkv_names(f"{LAYER}self_attention.query_key_value", BY_GROUP),
)
UNSAID = "it has linear biases, biases or blocks in turn"


@dataclass(frozen=True)
class FalconParts:
    """What some of its models have."""

    two_norms: bool  # one of attention, one of the feed-forward block


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The decoder of the 40B has groups of queries and two norms; that of the 7B one key head, or as many as all."""
    if values.get("new_decoder_architecture"):
        norms = values.get("num_ln_in_parallel_attn")
        return {"num_kv_heads": values.get("num_attention_heads"), **values, "two_norms": norms in (None, 2)}
    heads = 1 if values.get("multi_query", True) else values.get("num_attention_heads")
    return {**values, "num_kv_heads": heads, "two_norms": False}


def _words(config: ModelConfig) -> dict[str, Any]:
    new = config.own.two_norms or config.kv_heads > 1
    return {"new_decoder_architecture": new, "num_ln_in_parallel_attn": 1 + config.own.two_norms, "multi_query": True}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    if not config.parallel and values.flag("new_decoder_architecture", False):
        raise UnsupportedModel(f"{values.where}: parallel_attn False is not supported with new_decoder_architecture")
    return replace(config, alibi=8.0, rotary=0) if values.flag("alibi", False) else config


@architecture(
    Family(
        "falcon",
        (HfClass("FalconForCausalLM", "falcon", {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}),),
        fields(
            Field("kv_heads", "attention.head_count_kv", "u32", "num_kv_heads"),
            Field("ffn", "feed_forward_length", "u32", "ffn_hidden_size"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            Field("own.two_norms", "", "bool", "two_norms", weight="layers.{}.attn_norm_2.weight"),
            Field("parallel", "", "bool", "parallel_attn", default=True),
            *(Field(name, "", "bool", "bias") for name in ("attention_bias", "attention_out_bias", "mlp_bias")),
            without=("head_dim", "window"),
        ),
        NAMES,
        fixed={"parallel": True},
        only={"activation": ("gelu",)},
        finish=_finished,
        unsaid=lambda config: "" if config.parallel and not (config.alibi or config.mlp_bias) else UNSAID,
        reworded=_reworded,
        words=_words,
        ffn_widths=4,
        own=FalconParts,
    )
)
class Falcon(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), few key heads (Almazrouei et al. 2023)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, two = f"layers.{index}", config.own.two_norms
        if not config.parallel:
            norms = (LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "middle"))
            return Layer(next(norms), Attention(name, config), next(norms), MLP(name, config, "gelu"))
        return ParallelLayer(
            LayerNorm(f"{name}.attn_norm{'_2' * two}", config.width, config.eps),
            Attention(name, config),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps) if two else None,
            MLP(name, config, "gelu"),
        )

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Slopes are scaled as scores are, which no other family does."""
        scale = np.float32(self.config.attention_scale)
        return {name: table * scale if name == SLOPES else table for name, table in super().tables(context).items()}
