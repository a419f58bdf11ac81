"""GGUF files of Qwen3.5's text model."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import (
    ATTENTION_INTERVAL_KEY,
    DELTA_NET_GGUF_KEYS,
    recurrent_layers_metadata,
    with_delta_net_layers,
)
from sporelm.checkpoints.gguf.qwen3next import DELTA_NET_TENSORS, GATED_QUERY_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_ATTENTION_AS_FFN_NORM
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.qwen3next import Qwen3Next, Qwen3NextConfig
from sporelm.models.config import ModelConfig

ROPE_SECTIONS: Final = [11, 11, 10, 0]  # of M-RoPE; the positions of a text are the same in all
QWEN35_CONSTANTS: Final[Mapping[str, Any]] = {"delta_net.head_order": "all"}
QWEN35_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **POST_ATTENTION_AS_FFN_NORM,
    **HEAD_NORM_TENSORS,
    **GATED_QUERY_TENSORS,
    **DELTA_NET_TENSORS,
    "layers.{}.delta_beta.weight": "blk.{}.ssm_beta.weight",
    "layers.{}.delta_alpha.weight": "blk.{}.ssm_alpha.weight",
}


@register
class Qwen35Gguf(GgufSchema):
    """`qwen35`. Value heads that share a key head are not adjacent: the first ones of all key heads come first."""

    names: tuple[str, ...] = ("qwen35",)
    architecture = Qwen3Next
    keys = gguf_keys(*DELTA_NET_GGUF_KEYS, ATTENTION_INTERVAL_KEY)
    constants = QWEN35_CONSTANTS
    tensors = QWEN35_TENSORS
    allows_partial_rotary = True
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Qwen3NextConfig)
        return with_delta_net_layers(config, gguf.values, is_gguf=True)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Qwen3NextConfig)
        name = self.names[0]
        sections: MetadataEntry = "[i32]", ROPE_SECTIONS
        return {**recurrent_layers_metadata(config, name), f"{name}.rope.dimension_sections": sections}
