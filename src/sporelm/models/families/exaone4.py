"""EXAONE 4: norms behind each block and of each head; of four layers three have a window, and only they rotate."""

from dataclasses import replace
from typing import Any

from sporelm.models.blocks import Attention, GatedMLP, Layer, RMSNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_LAYERS, ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.family import Family, HfClass
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HEAD_NORMS, HF, POST_NORMS, Kind, changed

STEP = 4
WINDOWED = 64  # layers of the 32B: llama.cpp sees the window of no other


def fourth(layers: int, step: int = STEP) -> frozenset[int]:
    return frozenset(range(step - 1, layers, step))


def windowed(config: ModelConfig, values: Fields) -> ModelConfig:
    """With the windows of a config.json."""
    window = window_of(values, "sliding_window", 4096)
    full = full_layers_of(values, config.layers)
    if not values.has("layer_types") and window is not None:
        pattern = values.values.get("sliding_window_pattern", STEP)
        if isinstance(pattern, str):  # L for a layer with the window, G for one without, repeated
            full = frozenset(layer for layer in range(config.layers) if pattern[layer % len(pattern)] == "G")
        else:
            full = fourth(config.layers, values.integer("sliding_window_pattern", 1, MOST_LAYERS, STEP))
    return replace(config, window=window, full_layers=full)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind == HF:
        return windowed(config, values)
    return config if config.layers == WINDOWED else replace(config, window=None)


def unrotated(config: ModelConfig) -> str:
    """`Family.unsaid` of a window that no layer has: a GGUF file has none then, and its layers would be rotated."""
    none_has_it = config.window is not None and len(config.full_layers) == config.layers
    return "all of its layers do without positions" if none_has_it else ""


def _unsaid(config: ModelConfig) -> str:
    reason = unrotated(config)
    return "it has a window, and not 64 layers" if config.window and config.layers != WINDOWED else reason


def _words(config: ModelConfig) -> dict[str, Any]:
    """transformers looks for a window's layers where nobody names them, and finds none to count by."""
    return {} if config.window else {"layer_types": ["full_attention"] * config.layers}


@architecture(
    Family(
        "exaone4",
        (
            HfClass(
                "Exaone4ForCausalLM",
                "exaone4",
                {"num_key_value_heads": 32, "rms_norm_eps": 1e-5},
                (("sliding_window", "window"),),
            ),
        ),
        names=changed(COMMON, *HEAD_NORMS, *POST_NORMS),
        finish=_finished,
        full_layers=fourth,
        unsaid=_unsaid,
        words=_words,
        tells_layers=True,
    )
)
class Exaone4(Decoder):
    """x + norm(attention(x)), then x + norm(mlp(x)); layers that see all positions know none (LG AI Research 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, window = f"layers.{index}", config.window_of(index)
        return Layer(
            None,
            Attention(name, config, window, norm="heads", rotates=config.window is None or window is not None),
            None,
            GatedMLP(name, config),
            after_attention=RMSNorm(f"{name}.attn_post_norm", config.width, config.eps),
            after_mlp=RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps),
        )
