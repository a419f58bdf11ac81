"""GGUF files of LFM3. llama.cpp does not support it; the names are ours."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.lfm2 import LFM2_GGUF_KEYS, LFM2_TENSORS
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import POST_NORM_TENSORS
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, with_types_by_kv_heads
from sporelm.checkpoints.lfm2_layers import with_window_or_conv_layers
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.lfm3 import Lfm3, Lfm3Config
from sporelm.models.config import ModelConfig


@register
class Lfm3Gguf(GgufSchema):
    """`lfm3`. Gates and norms after blocks are optional: they exist if the file has their tensors."""

    names = ("lfm3",)
    architecture = Lfm3
    keys = gguf_keys(
        *LFM2_GGUF_KEYS,
        Key("attention_bias", "", "bool", tensor="layers.{}.attn_q.bias"),
        Key("attention_out_bias", "", "bool", tensor="layers.{}.attn_o.bias"),
        Key("has_attention_gate", "", "bool", tensor="layers.{}.attn_gate.weight"),
        Key("has_post_norms", "", "bool", tensor="layers.{}.attn_post_norm.weight"),
        Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, 10000.0),
    )
    tensors = {**LFM2_TENSORS, **POST_NORM_TENSORS, "layers.{}.attn_gate.weight": "blk.{}.attn_gate.weight"}
    has_window_pattern = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Lfm3Config)
        return with_window_or_conv_layers(config, values)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Lfm3Config)
        pattern = [config.window_of(layer) is not None for layer in range(config.layers)]
        name = self.names[0]
        return {
            **kv_heads_metadata(config, name, config.attention_layers),
            f"{name}.{WINDOW_PATTERN}": ("[bool]", pattern),
        }
