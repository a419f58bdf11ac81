"""MiniCPM3: latent attention in MiniCPM's layer."""

from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, Kind, changed
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.minicpm import LEAST, MOST, scaled
from sporelm.models.families.minicpm import words as scale_words
from sporelm.models.registry import architecture

# What transformers takes where config.json is silent.
DEFAULTS = {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
SCALES = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}  # llama.cpp knows no others


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Scales that are null are none; a head's values are as wide as its share of the rows."""
    found, width, heads = latent.reworded(values), *map(values.get, ("hidden_size", "num_attention_heads"))
    if found.get("scale_depth") is None and isinstance(layers := values.get("num_hidden_layers"), int):
        found["scale_depth"] = min(max(layers, 0), MOST_LAYERS) ** 0.5
    if found.get("dim_model_base") is None:
        found["dim_model_base"] = width
    if found.get("v_head_dim") is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        found["v_head_dim"] = width // heads
    return found


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return latent.finished(scaled(config, values, kind), values, kind)


def _unsaid(config: ModelConfig) -> str:
    if not config.own.q_rank:
        return "its queries are made without a latent"
    found = {"scale_emb": config.scales.embedding, **scale_words(config)}
    wrong = [key for key, value in SCALES.items() if abs(found[key] - value) > 1e-4 * value]
    return f"its {wrong[0]} is not {SCALES[wrong[0]]:g}" if wrong else latent.unsaid(config)


@architecture(
    Family(
        "minicpm3",
        (
            HfClass(
                "MiniCPM3ForCausalLM",
                "minicpm3",
                {**DEFAULTS, **SCALES, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
                | {"max_position_embeddings": 32768},
            ),
        ),
        fields(
            *latent.LATENT_FIELDS,
            Field("scales.embedding", "", "f32", "scale_emb", LEAST, MOST, 12.0),
            without=("window",),
        ),
        changed(COMMON, *latent.LATENT_NAMES, *latent.UNSPLIT),
        only={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=_reworded,
        said=lambda config: latent.said(config, "minicpm3", absorbed=False),
        words=lambda config: {**latent.words(config), **scale_words(config)},
        unsaid=_unsaid,
        partial_rotary=True,
        own=latent.LatentShape,
    )
)
class MiniCPM3(Decoder):
    """Latent attention; what each block adds, the embedding and the last rows are scaled (Hu et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config))
