"""GGUF files of Command-A+ and North-Mini-Code."""

from collections.abc import Set
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.cohere import COHERE_CONSTANTS, COHERE_KEYS
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, SHARED_EXPERT_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.cohere2moe import Cohere2Moe, Cohere2MoeConfig
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4  # the first of each four layers has no window
MIN_RMS_EPS: Final = 1e-12
COHERE2_MOE_CONSTANTS: Final[dict[str, Any]] = {**COHERE_CONSTANTS, "experts.averaged": True}
DEFAULT_SCORES: Final = "sigmoid"


def with_windows_and_eps(config: ModelConfig, window: int | None, full_layers: Set[int], where: str) -> ModelConfig:
    """Return the configuration with these windows, with rotary positions in dense layers and in layers with a window,
    and with the epsilon of its kind of norms. Raises UnsupportedModel if there is no window."""
    assert isinstance(config, Cohere2MoeConfig)
    assert config.experts is not None
    if window is None:
        raise UnsupportedModel(f"{where}: no layer has a window, so none would have rotary positions")
    return replace(
        config,
        window=window,
        full_layers=frozenset(full_layers),
        nope_layers=frozenset(full_layers - {*range(config.experts.leading)}),
        eps=config.rms_eps or config.eps,
    )


@register
class Cohere2MoeGguf(GgufSchema):
    """`cohere2moe`."""

    names = ("cohere2moe",)
    architecture = Cohere2Moe
    keys = gguf_keys(
        *COHERE_KEYS,
        Key("ffn", "feed_forward_length", "u32"),
        Key("rms_eps", "attention.layer_norm_rms_epsilon", "f32", MIN_RMS_EPS, 1.0, OPTIONAL),
        *gguf_expert_keys("count", "used", "ffn", "shared", "leading", "renormalize"),
        *(each._replace(default=DEFAULT_SCORES) for each in gguf_expert_keys("scores")),
    )
    constants = COHERE2_MOE_CONSTANTS
    tensors = DECODER_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS
    has_window_pattern = True
    has_mtp_layers = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP, first=0)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = gguf.values if values is None else values
        values = values.with_values({"attention.layer_norm_epsilon": 1e-5, **values.values})
        config = super().config_from_metadata(gguf, values)
        return with_windows_and_eps(config, config.window, config.full_layers, gguf.where)
