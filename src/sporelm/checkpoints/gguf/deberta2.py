"""GGUF files of DeBERTa v2 and v3. Only this engine writes them."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS, BERT_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.deberta2 import DISTANCES, DebertaV2, DebertaV2Config
from sporelm.models.encoder_config import EncoderConfig
from sporelm.ops.disentangled_attention import MAX_BUCKETS

BUCKETS: Final = Key("distance_buckets", "attention.relative_buckets_count", "u32", 2, MAX_BUCKETS)
# -1 means the number of positions.
MAX_DISTANCE: Final = Key("max_distance", "attention.relative_farthest", "u32", -1, MAX_CONTEXT, -1)


def with_distances(config: EncoderConfig, values: ConfigValues) -> EncoderConfig:
    """Return the configuration with the maximum distance, and with the scale for the sum of three scores. Raises
    UnsupportedModel for more buckets than the distances allow."""
    assert isinstance(config, DebertaV2Config)
    max_distance = config.max_distance if config.max_distance >= 1 else config.context_length
    if max_distance <= config.distance_buckets // 2 + 1:
        what = f"distances up to {max_distance} have {config.distance_buckets} buckets"
        keys = values.list_keys("max_relative_positions", "max_position_embeddings", "position_buckets")
        raise UnsupportedModel(f"{values.where}: {what}; there must be at least two distances for each{keys}")
    scales = replace(config.scales, attention=(3 * config.head_dim) ** -0.5)
    return replace(config, max_distance=max_distance, scales=scales)


@register
class DebertaV2Gguf(EncoderGgufSchema):
    """`deberta-v2`."""

    names = ("deberta-v2",)
    architecture = DebertaV2
    keys = gguf_keys(GGUF_LAYER_NORM_EPS, BUCKETS, MAX_DISTANCE, without=("head_dim", "kv_heads", "rotary", "window"))
    constants = BERT_CONSTANTS
    tensors = {
        **BERT_TENSORS,
        f"{DISTANCES}.weight": "position_rel.weight",
        **{f"{DISTANCES}_norm.{part}": f"position_rel_norm.{part}" for part in PARTS},
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        return with_distances(super().config_from_metadata(gguf, values), gguf.values)
