"""GGUF files of Qwen 1."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig


@register
class QwenGguf(GgufSchema):
    """`qwen`: Llama with biases on query, key and value (Bai et al. 2023)."""

    names = ("qwen",)
    architecture = Llama
    keys = gguf_keys(Key("eps", "attention.layer_norm_rms_epsilon", "f32"), without=("head_dim", "kv_heads", "window"))
    tensors = DECODER_TENSORS | FUSED_QKV_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_half_ffn(super().config_from_metadata(gguf, values))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return {"qwen.feed_forward_length": ("u32", 2 * config.ffn)}


def with_half_ffn(config: ModelConfig) -> ModelConfig:
    """Return the configuration of a file that stores the combined width of gate and up projection."""
    return replace(config, ffn=max(1, config.ffn // 2), attention_bias=True)
