"""GGUF files of Step 3.5 and 3.7 Flash."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys, with_experts_where_routers_are
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.rope_fields import FACTORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.swiglu_limits import read_swiglu_limits
from sporelm.checkpoints.transforms import Shape
from sporelm.checkpoints.window_head_keys import HEADS_KEY, LOCAL_THETA_KEY, with_gguf_heads, with_window_heads
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.step35 import Step35, Step35Config
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig
from sporelm.models.rope_scaling import Llama3Scaling, RopeScaling

STEP35_ROUTING: Final = {**V3_ROUTING, "experts.renormalize": True}
LIMITS: Final = "swiglu_clamp_exp"
SHARED_LIMITS: Final = "swiglu_clamp_shexp"


def check_rotary(config: ModelConfig, where: str) -> None:
    """Raise UnsupportedModel for unsupported rotary positions of layers without a window."""
    if config.rotary % 2 or type(config.rope_scaling) not in (RopeScaling, Llama3Scaling):
        scaling = type(config.rope_scaling).__name__.removesuffix("Scaling")
        what = f"{config.rotary} dimensions of a head are rotated, with scaling {scaling}"
        raise UnsupportedModel(f"{where}: {what}; they must be even, with llama3 scaling or none")


@register
class Step35Gguf(GgufSchema):
    """`step35`. Layers without a window rotate half of the files' rotary dimensions; layers with a router have
    experts."""

    names = ("step35",)
    architecture = Step35
    keys = gguf_keys(
        *gguf_expert_keys("count", "used", "ffn", "shared_ffn", "leading", "scale", "renormalize", "scores"),
        LOCAL_THETA_KEY,
        Key("local_rotary", "rope.dimension_count", "u32", 2, MAX_HEAD_DIM, OPTIONAL),
        without=("rotary",),
    )
    constants = STEP35_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        "layers.{}.attn_gate.weight": "blk.{}.attn_gate.weight",
    }
    allows_partial_rotary = True
    has_window_pattern = True
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Step35Config:
        values = with_gguf_heads(gguf.values if values is None else values, self.full_attention_layers)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Step35Config)
        config = with_window_heads(config, values)
        rotary = config.rotary // 2
        divisors = config.rope_scaling.divisors[: rotary // 2]
        config = replace(config, rotary=rotary, rope_scaling=replace(config.rope_scaling, divisors=divisors))
        check_rotary(config, values.where)
        config = replace(
            config,
            swiglu_limits=read_swiglu_limits(values, LIMITS, config.layers),
            shared_swiglu_limits=read_swiglu_limits(values, SHARED_LIMITS, config.layers),
        )
        return with_experts_where_routers_are(config, gguf.shapes)

    def required_tensors(self, config: ModelConfig) -> dict[str, Shape]:
        """Return the divisors of frequencies: llama.cpp reads as many as layers with a window need. Missing ones are
        1."""
        assert isinstance(config, Step35Config)
        is_scaled = isinstance(config.rope_scaling, Llama3Scaling) or config.rope_scaling.divisors
        return {FACTORS: ((config.local_rotary or 0) // 2,)} if is_scaled else {}

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Step35Config)
        found: dict[str, MetadataEntry] = {
            HEADS_KEY: ("[u32]", config.layer_heads),
            WINDOW_PATTERN: ("[bool]", [config.window_of(layer) is not None for layer in range(config.layers)]),
            LIMITS: ("[f32]", list(config.swiglu_limits)),
            SHARED_LIMITS: ("[f32]", list(config.shared_swiglu_limits)),
        }
        return {f"{self.names[0]}.{key}": entry for key, entry in found.items()}

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, Step35Config)
        if config.window is None:
            return "none of its layers has a window"
        is_half = config.local_rotary == 2 * config.rotary
        return "" if is_half else "layers without a window do not rotate half the dimensions of layers with one"
