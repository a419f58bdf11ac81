"""Persimmon: GPT-NeoX in turn, with squared ReLU, and a layer norm of each head of queries and keys."""

from dataclasses import dataclass
from typing import Any

from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, pre_norm
from sporelm.models.blocks.layer_norm import HeadLayerNorm, SharedHeadLayerNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import BY_GROUP, qkv_names
from sporelm.weights.names import COMMON, NORM_BIASES, changed, with_bias

LAYER = "model.layers.{}."
NAMES = changed(
    COMMON,
    *NORM_BIASES,
    *with_bias("output_norm", "output_norm", "model.final_layernorm"),
    *qkv_names(f"{LAYER}self_attn.query_key_value", BY_GROUP),
    *with_bias("layers.{}.attn_o", "blk.{}.attn_output", f"{LAYER}self_attn.dense"),
    *(
        names
        for part in "qk"
        for names in with_bias(
            f"layers.{{}}.attn_{part}_norm", f"blk.{{}}.attn_{part}_norm", f"{LAYER}self_attn.{part}_layernorm"
        )
    ),
    *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{LAYER}mlp.dense_h_to_4h"),
    *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{LAYER}mlp.dense_4h_to_h"),
)
BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")


@dataclass(frozen=True)
class Normed:
    """What only this family has."""

    heads: bool = True  # of queries and keys


def _words(config: ModelConfig) -> dict[str, Any]:
    return {"partial_rotary_factor": config.rotary / config.head_dim}


@architecture(
    Family(
        "persimmon",
        (
            HfClass(
                "PersimmonForCausalLM",
                "persimmon",
                {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "max_position_embeddings": 16384},
                (("qk_layernorm", "own.heads"),),
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            Field("own.heads", "", "bool", "qk_layernorm", default=True, weight="layers.{}.attn_q_norm.weight"),
            without=("head_dim", "kv_heads", "window"),
        ),
        NAMES,
        fixed=dict.fromkeys(BIASES, True),
        only={"hidden_act": ("relu2",)},
        words=_words,
        partial_rotary=True,
        own=Normed,
    )
)
class Persimmon(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Adept 2023)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config)
        if config.own.heads:
            parts = (f"{name}.attn_{part}_norm" for part in "qk")
            norms: list[HeadLayerNorm] = [SharedHeadLayerNorm(part, config.head_dim, config.eps) for part in parts]
            attention.norms = norms
        return pre_norm(config, index, attention, MLP(name, config, "relu_squared"), norm=self.norms)
