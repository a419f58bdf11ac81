"""Command-R7B, Command-A, Aya Expanse 2: Command-R with a window in three of four layers, which alone are rotated."""

from dataclasses import replace

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, pre_norm, unbiased
from sporelm.models.cohere import DEFAULTS, FIELDS, untied
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_LAYERS, ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HF, Kind

STEP = 4


def _fourth(layers: int, step: int = STEP) -> frozenset[int]:
    return frozenset(range(step - 1, layers, step))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    window, full = config.window, config.full_layers
    if kind == HF:
        window = window_of(values, "sliding_window", 4096)
        step = values.integer("sliding_window_pattern", 1, MOST_LAYERS, STEP)
        full = full_layers_of(values, config.layers) if values.has("layer_types") else _fourth(config.layers, step)
    if window is None:
        raise UnsupportedModel(f"{values.where}: layers without a window are not rotated, and no layer has one")
    return replace(config, window=window, full_layers=full, nope_layers=full)


@architecture(
    Family(
        "cohere2",
        (
            HfClass(
                "Cohere2ForCausalLM",
                "cohere2",
                DEFAULTS,
                (("attention_bias", "attention_bias"), ("sliding_window", "window")),
            ),
        ),
        fields(*FIELDS, Field("head_dim", "attention.key_length", "u32", "")),
        COMMON,
        fixed={"parallel": True, "rope_style": "adjacent"},
        only={"hidden_act": ("silu",), "use_qk_norm": (False,), "rotary_pct": (1.0,)},
        finish=_finished,
        full_layers=_fourth,
        unsaid=untied,
        tells_layers=True,
    )
)
class Cohere2(Decoder):
    """The layer of Command-R, every fourth without positions (Cohere 2025)."""

    norms = staticmethod(unbiased)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms, shared=True)
