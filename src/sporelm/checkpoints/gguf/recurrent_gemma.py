"""GGUF files of RecurrentGemma. llama.cpp does not support it; the names are ours."""

from dataclasses import replace
from typing import Final

import numpy as np

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PARTS
from sporelm.checkpoints.hybrid_layers import (
    ATTENTION_TYPES,
    kv_heads_metadata,
    read_attention_layers,
    with_types_by_kv_heads,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Transpose
from sporelm.errors import ModelFileError
from sporelm.models.architectures.recurrent_gemma import RecurrentGemma, RecurrentGemmaConfig
from sporelm.models.config import MAX_CONV_KERNEL, MAX_WIDTH, ModelConfig

MIN_CAP: Final = 1e-3
MAX_CAP: Final = 1e6
LOGIT_CAP: Final = 30.0
RECURRENT_GEMMA_CONSTANTS: Final = {"attention_out_bias": True, "mlp_bias": True}


@register
class RecurrentGemmaGguf(GgufSchema):
    """`recurrentgemma`."""

    names = ("recurrentgemma",)
    architecture = RecurrentGemma
    keys = gguf_keys(
        Key("logit_cap", "final_logit_softcapping", "f32", MIN_CAP, MAX_CAP, LOGIT_CAP),
        Key("conv_kernel", "ssm.conv_kernel", "u32", 2, MAX_CONV_KERNEL),
        Key("lru_width", "ssm.inner_size", "u32", 1, MAX_WIDTH),
    )
    constants = RECURRENT_GEMMA_CONSTANTS
    tensors = {
        **DECODER_TENSORS,
        **{f"layers.{{}}.lru_x.{part}": f"blk.{{}}.lru_x.{part}" for part in PARTS},
        **{f"layers.{{}}.lru_y.{part}": f"blk.{{}}.lru_y.{part}" for part in PARTS},
        **{f"layers.{{}}.lru_o.{part}": f"blk.{{}}.lru_out.{part}" for part in PARTS},
        "layers.{}.lru_conv.weight": StoredAs("blk.{}.lru_conv1d.weight", Transpose()),
        "layers.{}.lru_conv.bias": "blk.{}.lru_conv1d.bias",
        **{f"layers.{{}}.lru_fade.{part}": f"blk.{{}}.lru_recurrent_gate.{part}" for part in PARTS},
        **{f"layers.{{}}.lru_take.{part}": f"blk.{{}}.lru_input_gate.{part}" for part in PARTS},
        "layers.{}.lru.decay": "blk.{}.lru_a",
    }
    allows_partial_rotary = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values)
        lru_width = values.get("ssm.inner_size" if values.has("ssm.inner_size") else "embedding_length")
        config = super().config_from_metadata(gguf, values.with_changes({"ssm.inner_size": lru_width}))
        assert isinstance(config, RecurrentGemmaConfig)
        return with_recurrent_layers(config, values)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, RecurrentGemmaConfig)
        return kv_heads_metadata(config, self.names[0], config.attention_layers)


def with_recurrent_layers(config: RecurrentGemmaConfig, values: ConfigValues) -> RecurrentGemmaConfig:
    """Return the configuration with the attention layers, and embeddings scaled by the square root of the width. Raises
    ModelFileError for channels that are not whole heads."""
    if config.lru_width % config.heads:
        what = f"{config.lru_width} channels are not a multiple of {config.heads} heads"
        raise ModelFileError(f"{values.where}: {what}{values.list_keys('lru_width', 'num_attention_heads')}")
    layer_types = values.get("layer_types") or [ATTENTION_TYPES[0]] * config.layers
    attention_layers = read_attention_layers(values, layer_types, config.layers)
    scales = replace(config.scales, embedding=_bfloat16_root(config.width))
    return replace(config, attention_layers=attention_layers, scales=scales)


def _bfloat16_root(width: int) -> float:
    """Return the square root rounded to bfloat16, as in training."""
    bits = np.array(width**0.5, np.float32).view(np.uint32)
    return float(((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32))
