"""Command-R7B, Command-A: Command-R with a window in three of four layers, which alone are rotated."""

from dataclasses import replace

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind
from sporelm.checkpoints.windows import every, windowed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.cohere import DEFAULTS, FIELDS, untied
from sporelm.models.registry import architecture

STEP = 4


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind == HF:
        config = windowed(config, values, STEP, key="sliding_window_pattern")
    if config.window is None:
        raise UnsupportedModel(f"{values.where}: layers without a window are not rotated, and no layer has one")
    return replace(config, nope_layers=config.full_layers)


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
        fields(*FIELDS, Field("head_dim", "attention.key_length", "u32", "head_dim")),
        COMMON,
        fixed={"parallel": True, "rope_style": "adjacent"},
        only={"hidden_act": ("silu",), "use_qk_norm": (False,), "rotary_pct": (1.0,)},
        finish=_finished,
        full_layers=every(STEP),
        unsaid=untied,
        tells_layers=True,
    )
)
class Cohere2(Decoder):
    """The layer of Command-R, every fourth without positions (Cohere 2025)."""

    norms = staticmethod(layer_norm_without_bias)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms, shared=True)
