"""OLMo 2 and 3: norms behind each block, and of all queries and all keys of a row; windows in most layers of OLMo 3."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, POST_NORMS, Kind, changed
from sporelm.checkpoints.windows import every, windowed
from sporelm.models.blocks import Attention, Layer, RMSNorm, feed_forward
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

STEP = 4
BIAS = (("attention_bias", "attention_bias"),)


def _windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Rotary positions are scaled in layers without a window alone."""
    if kind == HF and config.architecture == "Olmo3ForCausalLM":
        config = windowed(config, values, STEP)
    return replace(config, local_theta=config.rope_theta if config.window else 0.0)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 has rotary parameters for each kind of layer."""
    kinds = values.get("rope_parameters")
    if not isinstance(kinds, dict) or "full_attention" not in kinds:
        return values
    return {**values, "rope_parameters": kinds["full_attention"]}


def normed_behind(config: ModelConfig, index: int) -> Layer:
    """The layer of this number."""
    name = f"layers.{index}"
    return Layer(
        None,
        Attention(name, config, config.window_of(index), norm="whole"),
        None,
        feed_forward(name, config, index),
        after_attention=RMSNorm(f"{name}.attn_post_norm", config.width, config.eps),
        after_mlp=RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps),
    )


@architecture(
    Family(
        "olmo2",
        (
            HfClass("Olmo2ForCausalLM", "olmo2", {"rms_norm_eps": 1e-5}, BIAS),
            HfClass(
                "Olmo3ForCausalLM",
                "olmo3",
                {"rms_norm_eps": 1e-5, "rope_theta": 500000.0},
                (*BIAS, ("sliding_window", "window")),
            ),
        ),
        fields(*ATTENTION_BIAS),
        changed(COMMON, *HEAD_NORMS, *POST_NORMS),
        finish=_windowed,
        full_layers=every(STEP),
        reworded=_reworded,
        tells_layers=True,
        choose=lambda config: "Olmo3ForCausalLM" if config.window else "Olmo2ForCausalLM",
    )
)
class Olmo2(Decoder):
    """x + norm(attention(x)), then x + norm(mlp(x)) (OLMo team 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return normed_behind(config, index)
