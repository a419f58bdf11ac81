"""Granite 3 (dense): Llama with scales on the embedding, on what each block adds, on scores and on logits."""

from dataclasses import replace

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import GGUF, Kind
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

LEAST, MOST = 1e-6, 1e6
NUMBERS = (
    Field("scales.embedding", "embedding_scale", "f32", "embedding_multiplier", LEAST, MOST, 1.0),
    Field("scales.residual", "residual_scale", "f32", "residual_multiplier", LEAST, MOST, 1.0),
    Field("scales.attention", "attention.scale", "f32", "attention_multiplier", LEAST, MOST, 1.0),
    Field("scales.logits", "logit_scale", "f32", "logits_scaling", LEAST, MOST, 1.0),
    *ATTENTION_BIAS,
)


def scored(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """GGUF files that say nothing of scores have the usual scale."""
    usual = kind == GGUF and not values.has("attention.scale")
    return replace(config, scales=replace(config.scales, attention=None)) if usual else config


@architecture(
    Family(
        "granite",
        (
            HfClass(
                "GraniteForCausalLM",
                "granite",
                fields=(("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias")),
            ),
        ),
        fields(*NUMBERS, Field("mlp_bias", "", "bool", "mlp_bias")),
        finish=scored,
        paired_rows=True,
    )
)
class Granite(Decoder):
    """The Llama layer, scaled (IBM 2024)."""
