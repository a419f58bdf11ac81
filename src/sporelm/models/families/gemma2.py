"""Gemma 2: Gemma with a window in every other layer, norms behind blocks too, and capped scores and logits."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HF, POST_NORMS, Kind, Names, changed
from sporelm.checkpoints.windows import every, windowed
from sporelm.models.blocks import GatedMLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.gemma import DEFAULTS, NORMS, USUAL, embedded, less_one
from sporelm.models.registry import architecture

LEAST, MOST = 1e-3, 1e6
LARGEST = 46  # layers of the 27B, whose scores GGUF files mean to be scaled by another width
CAPS = (
    Field("score_cap", "attn_logit_softcapping", "f32", "attn_logit_softcapping", LEAST, MOST, OPTIONAL),
    Field("logit_cap", "final_logit_softcapping", "f32", "final_logit_softcapping", LEAST, MOST, OPTIONAL),
)
AROUND = less_one(
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"),
    *POST_NORMS,
)
NUMBERS = {**DEFAULTS, "num_key_value_heads": 4, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def gguf_scale(config: ModelConfig, largest: int) -> float:
    """By which scores are multiplied in GGUF files, which have no key for it: the largest model is another."""
    size = config.width // config.heads if config.layers == largest else config.head_dim
    return float(size**-0.5)


def scaled(config: ModelConfig, values: Fields, kind: Kind, largest: int) -> ModelConfig:
    scale = gguf_scale(config, largest)
    if kind == HF:
        scale = values.number("query_pre_attn_scalar", LEAST, MOST, 256.0) ** -0.5
    return replace(config, scales=replace(config.scales, attention=scale))


def scalar(config: ModelConfig) -> dict[str, Any]:
    value = round(config.attention_scale**-2, 3)
    return {"query_pre_attn_scalar": int(value) if value == int(value) else value}


def unscaled(config: ModelConfig, largest: int) -> str:
    alike = abs(config.attention_scale - gguf_scale(config, largest)) < 1e-6
    return "" if alike else "its query_pre_attn_scalar is not what its heads have"


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = scaled(embedded(config, values, kind), values, kind, LARGEST)
    if kind == HF:
        return windowed(config, values, 2)
    window = config.window if "attention.sliding_window" in values.values else 4096
    return replace(config, window=window, score_cap=config.score_cap or 50.0, logit_cap=config.logit_cap or 30.0)


def _unsaid(config: ModelConfig) -> str:
    uncapped = config.score_cap is None or config.logit_cap is None
    return "its scores or logits have no cap" if uncapped else unscaled(config, LARGEST)


@architecture(
    Family(
        "gemma2",
        (
            HfClass(
                "Gemma2ForCausalLM",
                "gemma2",
                NUMBERS,
                (("sliding_window", "window"),),
            ),
        ),
        fields(*CAPS),
        changed(COMMON, *NORMS, *AROUND),
        only={"hidden_activation": ("gelu_pytorch_tanh",), **USUAL},
        finish=_finished,
        full_layers=every(2),
        tells_layers=True,
        words=scalar,
        said=lambda config: {} if config.window else {"gemma2.attention.sliding_window": ("u32", 0)},
        unsaid=_unsaid,
    )
)
class Gemma2(Decoder):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))) (Gemma team 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu_tanh"), behind=True)
