"""Qwen2 and Qwen2.5: Llama with biases on query, key and value."""

from dataclasses import replace

from sporelm.checkpoints.config_files import full_layers_of, window_of
from sporelm.checkpoints.family import Family, HfClass
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture


def windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """With `use_sliding_window` layers from `max_window_layers` on, or those in `layer_types`, have a window."""
    if kind != HF or not values.flag("use_sliding_window", False):
        return config
    full = full_layers_of(values, config.layers)
    if not values.has("layer_types"):
        full = frozenset(range(min(values.integer("max_window_layers", 0, 1 << 20, 28), config.layers)))
    return replace(config, window=window_of(values, "sliding_window", 4096), full_layers=full)


@architecture(
    Family(
        "qwen2",
        (
            HfClass(
                "Qwen2ForCausalLM",
                "qwen2",
                {"num_key_value_heads": 32, "max_position_embeddings": 32768},
            ),
        ),
        fixed={"attention_bias": True},
        finish=windowed,
        windowless=True,
    )
)
class Qwen2(Decoder):
    """The Llama layer; query, key and value have biases, the output of attention has none (Yang et al. 2024)."""
