"""Falcon 7B, 40B, 180B and Falcon 2: attention and feed-forward block beside each other, with one norm or two."""

from dataclasses import dataclass
from typing import Any

from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, ParallelLayer
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import QKV, by_group
from sporelm.weights.names import COMMON, Names, Stored, changed, with_bias

LAYER = "transformer.h.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.word_embeddings.weight"),
    *with_bias("output_norm", "output_norm", "transformer.ln_f"),
    *with_bias("layers.{}.attn_norm", "blk.{}.attn_norm", f"{LAYER}input_layernorm"),
    # Where there are two norms, GGUF files call that of the feed-forward block what else is that of both.
    *with_bias("layers.{}.attn_norm_2", "blk.{}.attn_norm_2", f"{LAYER}ln_attn"),
    *with_bias("layers.{}.ffn_norm", "blk.{}.attn_norm", f"{LAYER}ln_mlp"),
    Names("layers.{}.attn_o.weight", "blk.{}.attn_output.weight", f"{LAYER}self_attention.dense.weight"),
    Names("layers.{}.ffn_up.weight", "blk.{}.ffn_up.weight", f"{LAYER}mlp.dense_h_to_4h.weight"),
    Names("layers.{}.ffn_down.weight", "blk.{}.ffn_down.weight", f"{LAYER}mlp.dense_4h_to_h.weight"),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            Stored("blk.{}.attn_qkv.weight", rows),
            Stored(f"{LAYER}self_attention.query_key_value.weight", by_group(part)),
        )
        for part, rows in QKV.items()
    ),
)


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


@architecture(
    Family(
        "falcon",
        (HfClass("FalconForCausalLM", "falcon", {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}),),
        fields(
            Field("kv_heads", "attention.head_count_kv", "u32", "num_kv_heads"),
            Field("ffn", "feed_forward_length", "u32", "ffn_hidden_size"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            Field("own.two_norms", "", "bool", "two_norms", weight="layers.{}.attn_norm_2.weight"),
            without=("head_dim", "window"),
        ),
        NAMES,
        only={"activation": ("gelu",), "alibi": (False,), "bias": (False,), "parallel_attn": (True,)},
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
        return ParallelLayer(
            LayerNorm(f"{name}.attn_norm{'_2' * two}", config.width, config.eps),
            Attention(name, config),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps) if two else None,
            MLP(name, config, "gelu"),
        )
