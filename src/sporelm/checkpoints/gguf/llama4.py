"""GGUF files of Llama 4."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, SHARED_EXPERT_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.llama4 import Llama4, Llama4Config
from sporelm.models.config import ModelConfig

FULL_LAYER_STEP: Final = 4  # each fourth layer attends to all positions, without rotary positions
CHUNK: Final = 8192  # positions
UNNORMED_EXPERTS: Final = 128  # of Maverick, whose queries and keys are not normalized
TEMPERATURE_FLOOR: Final = 8192
TEMPERATURE_SCALE: Final = 0.1


def check_single_expert(config: ModelConfig, where: str) -> None:
    """Raise UnsupportedModel if a token uses several experts."""
    if config.experts and config.experts.used != 1:
        what = f"num_experts_per_tok {config.experts.used} is not supported; 1 is"
        raise UnsupportedModel(f"{where}: {what}")


def without_experts(values: ConfigValues) -> ConfigValues:
    """Return metadata with 0 experts if the interval of layers with experts is 0 (llama.cpp's llama4.cpp)."""
    step = values.get("interleave_moe_layer_step")
    is_none = type(step) is int and step == 0
    return values.with_changes({"interleave_moe_layer_step": 1, "expert_count": 0}) if is_none else values


@register
class Llama4Gguf(GgufSchema):
    """`llama4`. The default is chunks of 8192 positions. With attention to all positions, all layers are rotated
    (MobileLLM)."""

    names = ("llama4",)
    architecture = Llama4
    keys = gguf_keys(
        Key("ffn", "feed_forward_length", "u32"),
        *gguf_expert_keys("count", "used", "ffn", "step", optional=True),
        without=("window",),
    )
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(FULL_LAYER_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Llama4Config:
        values = without_experts(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Llama4Config)
        check_single_expert(config, values.where)
        has_qk_norm = config.experts is None or config.experts.count != UNNORMED_EXPERTS
        config = replace(config, has_qk_norm=has_qk_norm)
        if values.integer("attention.sliding_window", 0, CHUNK, CHUNK) == 0:
            return replace(config, temperature_scale=0.0)
        values.integer("attention.sliding_window", CHUNK, CHUNK, CHUNK)
        return replace(config, window=CHUNK, nope_layers=self.full_attention_layers(config.layers))

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, Llama4Config)
        experts, full_layers = config.experts, self.full_attention_layers(config.layers)
        if experts is None or experts.dense:
            return "its layers with experts are not at a regular interval"
        if config.window != CHUNK or {config.full_layers, config.nope_layers} != {full_layers}:
            return (
                f"its layers are not three with chunks of {CHUNK} positions, then one without, and without rotary ones"
            )
        is_usual = (
            config.has_qk_norm == (experts.count != UNNORMED_EXPERTS)
            and config.temperature_floor == TEMPERATURE_FLOOR
            and config.temperature_scale == TEMPERATURE_SCALE
        )
        return "" if is_usual else "its norms or temperature scales of queries and keys differ from those of llama.cpp"
