"""Ministral 3 and Mistral Small 3.1: Llama, whose queries may grow with their position (Llama 4's temperature)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.checkpoints.beside_vision import OTHERS, text_names, text_part
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import ROPE
from sporelm.models.registry import architecture
from sporelm.models.rope_scaling import Yarn

QUERIES = "rope_queries"  # the rotary table of queries
BETA = "llama_4_scaling_beta"
# What transformers takes where config.json says nothing of rotary positions.
USUAL = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    BETA: 0.1,
}


# What it takes where the configuration of a text model says nothing, by that model's type.
OF_MISTRAL = {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}
OF_MINISTRAL = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5}
OF_MINISTRAL |= {"rope_theta": 1e6}


@dataclass(frozen=True)
class Tempered:
    """How fast queries grow: 1 + beta * log(1 + how often YaRN's original context fits before them)."""

    beta: float


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The rotary parameters hold a number that is none of theirs, and repeat another."""
    values = text_part(values)
    if values.get("model_type") != "ministral3":  # Mistral Small's text model is the Mistral of transformers
        return OF_MISTRAL | values
    values = OF_MINISTRAL | values
    key = "rope_parameters" if values.get("rope_parameters") or not values.get("rope_scaling") else "rope_scaling"
    given = values.get(key) or USUAL
    if not isinstance(given, Mapping):
        return values
    inner = {name: value for name, value in given.items() if name not in (BETA, "max_position_embeddings")}
    return {**values, key: inner, BETA: given.get(BETA)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if config.own.beta and not isinstance(config.rope_scaling, Yarn):
        raise UnsupportedModel(f"{values.where}: queries that grow with their position need YaRN's original context")
    return config


def _words(config: ModelConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    found = {"rope_type": "default", "original_max_position_embeddings": config.context_length}
    if isinstance(scaling, Yarn):
        found = {"rope_type": "yarn", "factor": scaling.factor, "original_max_position_embeddings": scaling.original}
        found |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        found |= {"attention_factor": scaling.attention}
    found |= {"rope_theta": config.rope_theta, BETA: config.own.beta}
    return {"rope_scaling": None, "rope_parameters": found}


def grown(config: ModelConfig, context: int) -> np.ndarray | None:
    """By what queries are multiplied at each position: float64 [context, 1]; None if by nothing."""
    scaling = config.rope_scaling
    if not config.own.beta or not isinstance(scaling, Yarn):
        return None
    return np.asarray(1 + config.own.beta * np.log1p(np.arange(context) // scaling.original))[:, None]


@architecture(
    Family(
        "mistral3",
        (
            HfClass("Ministral3ForCausalLM", "ministral3", OF_MINISTRAL),
            HfClass("Mistral3ForConditionalGeneration", "mistral3", {"tie_word_embeddings": True}),
        ),
        fields(Field("own.beta", "attention.temperature_scale", "f32", BETA, 0, 100, 0.0), without=("window",)),
        others={HF: text_names(COMMON)},
        ignored=OTHERS,
        only={"hidden_act": ("silu",), "sliding_window": (None,), "model_type": ("ministral3", "mistral", "mistral3")},
        finish=_finished,
        reworded=_reworded,
        words=_words,
        paired_rows=True,
        own=Tempered,
    )
)
class Mistral3(Decoder):
    """The Llama layer (Mistral AI 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        table = QUERIES if config.own.beta else ""
        return pre_norm(config, index, Attention(f"layers.{index}", config, query_table=table))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        tables = super().tables(context)
        if (growth := grown(self.config, context)) is not None:
            tables[QUERIES] = (tables[ROPE] * growth).astype(np.float32)
        return tables
