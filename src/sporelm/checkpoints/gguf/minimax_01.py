"""GGUF files of MiniMax-Text-01 and MiniMax-M1."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import (
    ATTENTION_INTERVAL_KEY,
    read_recurrent_layers,
    recurrent_layers_metadata,
)
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.minimax_01 import MiniMax01, MiniMax01Config
from sporelm.models.config import ModelConfig

MIN_SCALE: Final = 1e-6
MAX_SCALE: Final = 1e6
MINIMAX_ROUTING: Final = {"experts.scores": "softmax_of_chosen"}


@register
class MiniMax01Gguf(GgufSchema):
    """`minimax-01`. A file has one residual factor for all blocks."""

    names = ("minimax-01",)
    architecture = MiniMax01
    keys = gguf_keys(
        *gguf_expert_keys("count", "used"),
        Key("attention_residual_scale", "residual_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
        ATTENTION_INTERVAL_KEY._replace(default=8),
        without=("window",),
    )
    constants = MINIMAX_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(),
        "layers.{}.lightning_qkv.weight": "blk.{}.attn_qkv.weight",
        "layers.{}.lightning_gate.weight": "blk.{}.attn_gate.weight",
        "layers.{}.lightning_norm.weight": "blk.{}.attn_norm_2.weight",
        "layers.{}.lightning_o.weight": "blk.{}.attn_output.weight",
    }
    allows_partial_rotary = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, MiniMax01Config)
        scale = config.attention_residual_scale
        config = replace(config, lightning_residual_scale=scale, mlp_residual_scale=scale)
        return replace(config, attention_layers=read_recurrent_layers(config, gguf.values))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, MiniMax01Config)
        return recurrent_layers_metadata(config, self.names[0])

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, MiniMax01Config)
        scales = {config.attention_residual_scale, config.lightning_residual_scale, config.mlp_residual_scale}
        return "" if len(scales) == 1 else "its blocks have different residual scales"
