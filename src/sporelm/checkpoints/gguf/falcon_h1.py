"""GGUF files of Falcon-H1. llama.cpp's converter multiplies their weights by the multipliers; falcon-h1.cpp has
none."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PARTS
from sporelm.checkpoints.mamba_keys import (
    MAMBA2_GGUF_KEYS,
    MAMBA2_GGUF_TENSORS,
    find_time_step_limits,
    with_gguf_mamba2_sizes,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.checkpoints.transforms import Divide
from sporelm.models.architectures.falcon_h1 import FalconH1, FalconH1Config
from sporelm.models.config import ModelConfig

# Parameters -> the factors in their GGUF weights. A bias is added before an output is multiplied, but after an input
# is.
FACTORS: Final[dict[str, Callable[[Any], Any]]] = {
    "embedding.weight": attrgetter("scales.embedding"),
    "output.weight": attrgetter("scales.output"),
    "layers.{}.attn_q.weight": attrgetter("attention_in_multiplier"),
    "layers.{}.attn_k.weight": lambda config: config.attention_in_multiplier * config.key_multiplier,
    "layers.{}.attn_k.bias": attrgetter("key_multiplier"),
    "layers.{}.attn_v.weight": attrgetter("attention_in_multiplier"),
    "layers.{}.attn_o.weight": attrgetter("attention_out_multiplier"),
    "layers.{}.ssm_z.weight": attrgetter("gate_multiplier"),
    "layers.{}.ssm_xbc.weight": lambda config: config.conv_multipliers[:, None],
    "layers.{}.ssm_step.weight": attrgetter("time_step_multiplier"),
    "layers.{}.ssm_o.weight": attrgetter("ssm_out_multiplier"),
    **{f"layers.{{}}.ffn_gate.{part}": attrgetter("mlp_gate_multiplier") for part in PARTS},
    **{f"layers.{{}}.ffn_down.{part}": attrgetter("mlp_down_multiplier") for part in PARTS},
}
# Factors that our convolution weights contain; neither kind of files has them.
CONV_FACTORS: Final[dict[str, Callable[[Any], Any]]] = {
    "layers.{}.ssm_conv.weight": lambda config: 1 / config.conv_multipliers
}


def with_factors(tensors: TensorTable, factors: dict[str, Callable[[Any], Any]]) -> TensorTable:
    """Return a table whose stored tensors are multiplied by these factors."""
    changed: TensorTable = {}
    for parameter, factor in factors.items():
        (stored,) = alternatives(tensors[parameter])
        changed[parameter] = StoredAs(stored.name, *stored.transforms, Divide(factor))
    return tensors | changed


@register
class FalconH1Gguf(GgufSchema):
    """`falcon-h1`."""

    names = ("falcon-h1",)
    architecture = FalconH1
    keys = gguf_keys(*MAMBA2_GGUF_KEYS, Key("has_mixer_norm", "", "bool", tensor="layers.{}.ssm_norm.weight"))
    tensors = with_factors(
        {**DECODER_TENSORS, "layers.{}.ffn_norm.weight": "blk.{}.ffn_norm", **MAMBA2_GGUF_TENSORS},
        FACTORS | CONV_FACTORS,
    )

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, FalconH1Config)
        return with_gguf_mamba2_sizes(config, gguf.values)

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, FalconH1Config)
        if config.has_mixer_norm and config.is_norm_before_gate:
            return "Mamba mixers are normalized before their gates"
        if config.attention_bias:
            return "attention has biases"
        if config.tie_embeddings and config.scales.embedding != config.scales.output:
            return "its output is tied to the embedding, and they have different multipliers"
        return find_time_step_limits(config)
