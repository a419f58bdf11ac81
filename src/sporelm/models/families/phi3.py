"""Phi-3, Phi-3.5 and Phi-4: Llama whose files hold query, key and value in one tensor, gate and up in another."""

from dataclasses import replace
from typing import Any

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.config_files import window_of
from sporelm.weights.family import Family, HfClass
from sporelm.weights.fields import Fields
from sporelm.weights.forms import gate_up_names, qkv_names
from sporelm.weights.names import COMMON, HF, Kind, changed
from sporelm.weights.rope_scaling import LongRope

NAMES = changed(
    COMMON,
    *qkv_names("model.layers.{}.self_attn.qkv_proj", kinds=("weight",)),
    *gate_up_names("model.layers.{}.mlp.gate_up_proj.weight"),
)


def windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, window=window_of(values, "sliding_window", None)) if kind == HF else config


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """LongRoPE as its first folders call it, and as transformers reads them."""
    scaling = values.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("rope_type", scaling.get("type")) not in ("su", "yarn"):
        return values
    return {**values, "rope_scaling": {**scaling, "rope_type": "longrope"}}


def _words(config: ModelConfig) -> dict[str, Any]:
    """The original context stands beside `rope_scaling`, and counts first."""
    scaling = config.rope_scaling
    original = scaling.original if isinstance(scaling, LongRope) else config.context_length
    return {"partial_rotary_factor": config.rotary / config.head_dim, "original_max_position_embeddings": original}


@architecture(
    Family(
        "phi3",
        (
            HfClass(
                "Phi3ForCausalLM",
                "phi3",
                {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
                (("sliding_window", "window"),),
            ),
        ),
        names=NAMES,
        finish=windowed,
        reworded=reworded,
        words=_words,
        partial_rotary=True,
        windowless=True,
    )
)
class Phi3(Decoder):
    """The Llama layer, its rotary frequencies stretched by LongRoPE (Abdin et al. 2024)."""
