"""DeBERTa v2 and v3: BERT with relative positions in attention and none in embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Classifier, DisentangledSelfAttention, EncoderLayer, LayerNorm
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.params import Param
from sporelm.quant.stored_tensor import StoredTensor

DISTANCES: Final = "distances"  # the learned rows of distances


@dataclass(frozen=True, kw_only=True)
class DebertaV2Config(EncoderConfig):
    """The fields of DeBERTa.

    distance_buckets   rows for distances of either sign
    max_distance       the last of these rows is for this distance and all greater ones
    """

    distance_buckets: int = 0
    max_distance: int = 0


@architecture("deberta2", DebertaV2Config)
class DebertaV2(Encoder[DebertaV2Config]):
    """BERT's layer with disentangled attention; all layers share the normed rows of distances (He et al. 2021)."""

    has_position_table = False

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        self.learned_norm = LayerNorm(f"{DISTANCES}_norm", config.width, config.eps)
        # For either sign of a distance, of queries and of keys.
        self.extra_values_per_token = 4 * config.heads * config.distance_buckets

    def params(self) -> list[Param]:
        rows = Param(f"{DISTANCES}.weight", (2 * self.config.distance_buckets, self.config.width), plain=True)
        return [*super().params(), rows, *self.learned_norm.params()]

    def learned_weights(self, weights: Mapping[str, Any]) -> dict[str, StoredTensor]:
        rows = self.learned_norm(weights[f"{DISTANCES}.weight"], weights)
        found: dict[str, StoredTensor] = {}
        for layer in self.layers:
            assert isinstance(layer.attention, DisentangledSelfAttention)
            found |= layer.attention.learned(rows, weights)
        return found

    def layer(self, config: DebertaV2Config, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        attention = DisentangledSelfAttention(name, config, config.distance_buckets, config.max_distance)
        return EncoderLayer(first, attention, second, MLP(name, config, "gelu"), post=True)

    def head(self, config: DebertaV2Config) -> Classifier:
        dense = config.has_head_dense
        return Classifier(config.head_labels, config.width, dense=dense, bias=True, activation="gelu")
