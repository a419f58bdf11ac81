"""Code World Model: Llama 3 with a window in three of four layers."""

from dataclasses import replace
from typing import Any

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.family import Family, HfClass
from sporelm.weights.fields import Fields
from sporelm.weights.names import HF, Kind

STEP = 4
ROPE = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0}
ROPE |= {"original_max_position_embeddings": 8192}
NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5}
NUMBERS |= {"max_position_embeddings": 131072}


def _usual(layers: int) -> frozenset[int]:
    return frozenset(range(0, layers, STEP))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    layers = config.layers
    full = full_layers_of(values, layers) if values.has("layer_types") else _usual(layers)
    window = window_of(values, "sliding_window", 8192) if len(full) < layers else None
    return replace(config, window=window, full_layers=full if window else frozenset())


def _words(config: ModelConfig) -> dict[str, Any]:
    kinds = [
        "full_attention" if config.window_of(layer) is None else "sliding_attention" for layer in range(config.layers)
    ]
    return {"layer_types": kinds, "sliding_window": config.window}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the class's rotary parameters where it has none; rope_theta alone says nothing."""
    if values.get("sliding_window") == 0:  # which transformers takes for none
        values = {**values, "sliding_window": None}
    said = values.get("rope_scaling") or values.get("rope_parameters") is not None
    return values if said else {**values, "rope_scaling": None, "rope_parameters": ROPE}


@architecture(
    Family(
        "cwm",
        (HfClass("CwmForCausalLM", "cwm", NUMBERS),),
        only={"hidden_act": ("silu",), "mlp_bias": (False,)},
        finish=_finished,
        reworded=_reworded,
        full_layers=_usual,
        tells_layers=True,
        words=_words,
    )
)
class Cwm(Decoder):
    """The Llama layer (FAIR CodeGen team 2025)."""
