"""GGUF files of StableLM."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.stablelm import StableLM, StableLMConfig
from sporelm.models.config import ModelConfig


@register
class StableLMGguf(GgufSchema):
    """`stablelm`. The norms determine whether blocks are parallel: llama.cpp's converter once wrote the wrong value of
    the key."""

    names = ("stablelm",)
    architecture = StableLM
    keys = gguf_keys(
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("parallel", "use_parallel_residual", "bool"),
        Key("has_head_norms", "", "bool", tensor="layers.{}.attn_q_norm.weight"),
        Key("has_ffn_norm", "", "bool", tensor="layers.{}.ffn_norm.weight"),
        without=("window",),
    )
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS | HEAD_NORM_TENSORS
    allows_partial_rotary = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, StableLMConfig)
        return replace(config, parallel=not config.has_ffn_norm)
