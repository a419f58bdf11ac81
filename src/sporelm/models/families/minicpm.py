"""MiniCPM 1 and 2: Llama with scales on the embedding, on what each block adds, and on the last rows."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.models.config import MOST_WIDTH, ModelConfig, Scales
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

LEAST, MOST = 1e-6, 1e6


def scaled(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """config.json has a depth and a base width of which the scales are made; GGUF files of old, and MiniCPM3's, say
    nothing, and are scaled as MiniCPM-2B."""
    if kind == HF:
        depth = values.number("scale_depth", LEAST, MOST, 1.0)
        base = values.number("dim_model_base", 1, MOST_WIDTH, 1.0)
        made = replace(config.scales, residual=depth / config.layers**0.5, logits=config.width / base)
    elif values.has("embedding_scale"):
        made = config.scales
    else:
        made = Scales(embedding=12.0, residual=1.4 / config.layers**0.5, logits=config.width / 256)
    return replace(config, scales=made)


def words(config: ModelConfig) -> dict[str, Any]:
    depth = config.scales.residual * config.layers**0.5
    return {"scale_depth": round(depth, 6), "dim_model_base": round(config.width / config.scales.logits, 3)}


@architecture(
    Family(
        "minicpm",
        (
            HfClass(
                "MiniCPMForCausalLM",
                "minicpm",
                {"tie_word_embeddings": True},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(
            Field("scales.embedding", "embedding_scale", "f32", "scale_emb", LEAST, MOST, 1.0),
            Field("scales.residual", "residual_scale", "f32", "", LEAST, MOST, 1.0),
            Field("scales.logits", "logit_scale", "f32", "", LEAST, MOST, 1.0),
            *ATTENTION_BIAS,
        ),
        only={"hidden_act": ("silu",), "sparse_config": (None,), "num_experts": (0,)},
        finish=scaled,
        words=words,
        paired_rows=True,
    )
)
class MiniCPM(Decoder):
    """The Llama layer with scales after those of small models that it was tuned on (Hu et al. 2024)."""
