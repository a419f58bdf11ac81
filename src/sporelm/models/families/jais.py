"""Jais 1: GPT-2 with a gate, linear biases in place of positions, and widths scaled by muP."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sporelm.models.blocks import Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.gpt2 import FIXED, LAYER, NUMBERS, turned
from sporelm.models.families.gpt2 import NAMES as ALIKE
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import GGUF, Kind, Names, Stored, changed

LEAST, MOST = 1e-6, 1e6
OCTAVES = 8.0


def _times(name: str, hf: str, factor: Callable[[ModelConfig], float]) -> Names:
    """A weight that GGUF files have multiplied, for llama.cpp knows no factor."""
    return Names(
        f"{name}.weight", Stored(f"{'token_embd' if hf else name}.weight", times=factor), hf or "lm_head.weight"
    )


NAMES = changed(
    ALIKE,
    _times("embedding", "transformer.wte.weight", lambda config: config.scales.embedding),
    _times("output", "", lambda config: config.scales.output),
    *(
        Names(f"layers.{{}}.ffn_{part}.{kind}", f"blk.{{}}.ffn_{part}.{kind}", turned(f"mlp.{hf}", kind))
        for part, hf in (("up", "c_fc"), ("gate", "c_fc2"))
        for kind in ("weight", "bias")
    ),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The words of the later models for numbers of the first."""
    old = {"embeddings_scale": "mup_embeddings_scale", "scale_qk_dot_by_d": "mup_scale_qk_dot_by_d"}
    found = {ours: values[word] for ours, word in old.items() if word in values}
    if "width_scale" not in values and "mup_width_scale" in values:
        read = Fields({"mup_output_alpha": 1.0, **values}, "config.json")
        found["width_scale"] = read.number("mup_output_alpha", LEAST, MOST) * read.number(
            "mup_width_scale", LEAST, MOST
        )
    return {**found, **values}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    by_width = kind == GGUF or values.flag("scale_qk_dot_by_d", False)
    return replace(config, scales=replace(config.scales, attention=1 / config.head_dim if by_width else None))


def _unsaid(config: ModelConfig) -> str:
    if config.tie_embeddings:
        return "its output is its embedding"
    return "" if config.scales.attention else "its scores are divided by the root of a head's width"


@architecture(
    Family(
        "jais",
        (
            HfClass(
                "JAISLMHeadModel",
                "jais",
                {"tie_word_embeddings": True, "n_positions": 2048, "layer_norm_epsilon": 1e-5}
                | {"activation_function": "gelu_new", "position_embedding_type": "learned"},
            ),
        ),
        fields(
            *NUMBERS,
            Field("alibi", "attention.max_alibi_bias", "f32", "", 1, 1024, OCTAVES),
            Field("scales.embedding", "", "f32", "embeddings_scale", LEAST, MOST, 1.0),
            Field("scales.output", "", "f32", "width_scale", LEAST, MOST, 1.0),
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed={**FIXED, "alibi": OCTAVES},
        only={
            "activation_function": ("swiglu",),
            "position_embedding_type": ("alibi",),
            "alibi_scaling": (None,),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        finish=_finished,
        reworded=_reworded,
        unsaid=_unsaid,
        words=lambda config: {"scale_qk_dot_by_d": config.scales.attention is not None},
        positions="n_positions",
        ffn_widths=4,
        ignored=(f"{LAYER}attn.bias", f"{LAYER}attn.masked_bias", "transformer.relative_pe.slopes"),
        prefix="transformer.",
    )
)
class Jais(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Sengupta et al. 2023)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms)
