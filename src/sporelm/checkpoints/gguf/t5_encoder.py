"""GGUF files of the encoders of T5 and mT5."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.t5_encoder import GATED_GELU, RELU, UNGATED, T5Encoder
from sporelm.models.biased_encoder import DISTANCE_BIASES
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig
from sporelm.models.distances import BUCKETS
from sporelm.models.encoder_config import EncoderConfig

BUCKET_COUNT: Final = "attention.relative_buckets_count"
T5_CONSTANTS: Final = {"rotary": 0, "scales.attention": 1.0}
# Parameters of a layer -> stored names, both without ".weight".
_LAYER: Final = {
    **{f"attn_{part}": f"attn_{part}" for part in "qkvo"},
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "ffn_gate",
    "ffn_up": "ffn_up",
    f"ffn_up{UNGATED}": "ffn_up",
    "ffn_down": "ffn_down",
    f"ffn_down{UNGATED}": "ffn_down",
}


@register
class T5EncoderGguf(EncoderGgufSchema):
    """`t5encoder`."""

    names = ("t5encoder",)
    architecture = T5Encoder
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("width", "embedding_length", "u32"),
        Key("ffn", "feed_forward_length", "u32"),
        Key("heads", "attention.head_count", "u32"),
        Key("head_dim", "attention.key_length", "u32", 2, MAX_HEAD_DIM),
        Key("head_dim", "attention.value_length", "u32"),
        Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
        without=("kv_heads", "rotary", "window"),
    )
    constants = T5_CONSTANTS
    tensors = {
        "embedding.weight": "token_embd.weight",
        "output_norm.weight": "enc.output_norm.weight",
        DISTANCE_BIASES: "enc.blk.0.attn_rel_b.weight",
        **{f"layers.{{}}.{name}.weight": f"enc.blk.{{}}.{stored}.weight" for name, stored in _LAYER.items()},
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        config = super().config_from_metadata(gguf, values)
        count = gguf.values.get(BUCKET_COUNT, BUCKETS)
        if not isinstance(count, int) or count != BUCKETS:
            raise UnsupportedModel(f"relative_buckets_count {str(count)[:40]} is not supported; {BUCKETS} is")
        is_gated = "enc.blk.0.ffn_gate.weight" in gguf.shapes
        return replace(config, activation=GATED_GELU if is_gated else RELU)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return {**super().extra_metadata(config), f"{self.names[0]}.{BUCKET_COUNT}": ("u32", BUCKETS)}
