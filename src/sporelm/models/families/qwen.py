"""Qwen 1: Llama with biases of queries, keys and values, under GPT-2's names."""

from dataclasses import replace
from typing import Any

from sporelm.models.decoder import Decoder
from sporelm.models.families.exaone import LAYER, named_as_gpt2
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.forms import qkv_names
from sporelm.weights.names import Kind, changed

NAMES = changed(
    named_as_gpt2(
        ("attn_o", "attn_output", "attn.c_proj"),
        ("ffn_up", "ffn_up", "mlp.w1"),
        ("ffn_gate", "ffn_gate", "mlp.w2"),
    ),
    *qkv_names(f"{LAYER}attn.c_attn"),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "rope_theta": values.get("rotary_emb_base")}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Files give the width of gate and up part together."""
    return replace(config, ffn=max(1, config.ffn // 2), attention_bias=True)


def _words(config: ModelConfig) -> dict[str, Any]:
    # Within `seq_length` neither longer rotary waves nor scores that grow with a text's length count.
    return {
        "intermediate_size": 2 * config.ffn,
        "rotary_emb_base": config.rope_theta,
        "seq_length": config.context_length,
    }


@architecture(
    Family(
        "qwen",
        (HfClass("QWenLMHeadModel", "qwen", {"layer_norm_epsilon": 1e-6, "seq_length": 8192}),),
        fields(
            Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
            without=("head_dim", "kv_heads", "window"),
        ),
        NAMES,
        only={"no_bias": (True,), "rotary_pct": (1.0,), "scale_attn_weights": (True,)},
        finish=_finished,
        said=lambda config: {"qwen.feed_forward_length": ("u32", 2 * config.ffn)},
        words=_words,
        reworded=_reworded,
        positions="seq_length",
        ignored=("transformer.rotary_emb.inv_freq",),
        prefix="transformer.",
    )
)
class Qwen(Decoder):
    """The Llama layer (Bai et al. 2023)."""
