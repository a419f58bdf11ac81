"""DeBERTa v2 and v3 (He et al. 2021): BERT without positions in its rows; attention knows distances."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_CONTEXT
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import MLP, Classifier, DisentangledAttention, EncoderLayer, LayerNorm
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.families.bert_names import HEADS
from sporelm.models.families.deberta2_words import CLASSES, LEARNED, SAID, SPOKEN, DistanceFacts, reworded
from sporelm.models.params import Param
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, headed, label_words, noticed, said
from sporelm.ops.disentangled_attention import MAX_BUCKETS
from sporelm.quant.stored_tensor import StoredTensor


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    facts: DistanceFacts = config.own
    if facts.farthest < 1:
        facts = replace(facts, farthest=config.context_length)
    if facts.farthest <= facts.buckets // 2 + 1:
        what = f"distances up to {facts.farthest} have {facts.buckets} buckets"
        keys = values.among("max_relative_positions", "max_position_embeddings", "position_buckets")
        raise UnsupportedModel(f"{values.where}: {what}; there must be at least two places for each{keys}")
    if kind == HF and values.integer("embedding_size", 1, MOST_CONTEXT, config.width) != config.width:
        raise UnsupportedModel(f"{values.where}: embedding_size must be hidden_size, {config.width}")
    scales = replace(config.scales, attention=(3 * config.head_dim) ** -0.5)  # of three sums
    return headed(replace(config, own=facts, scales=scales), values, kind)


@architecture(
    Family(
        "deberta-v2",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            Field("own.buckets", "attention.relative_buckets_count", "u32", "position_buckets", 2, MAX_BUCKETS),
            Field("own.farthest", "attention.relative_farthest", "u32", "max_relative_positions", -1, MOST_CONTEXT, -1),
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        CLASSES[0].names,
        fixed={"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={"hidden_act": ("gelu",), "pooler_hidden_act": ("gelu",), "conv_kernel_size": (0,)}
        | {key: (value,) for key, value in SPOKEN.items()},
        finish=_finished,
        noticed=noticed,
        said=lambda config: said(config, "deberta-v2"),
        choose=lambda config: CLASSES[2 if config.own.labels else 0].name,
        words=lambda config: SPOKEN | label_words(config),
        reworded=reworded,
        fronts=(SAID.front,),
        ignored=(
            *(
                f"{front}embeddings.position_{what}"
                for front in ("", SAID.front)
                for what in ("ids", "embeddings.weight")
            ),
            *("pooler.dense.*", "lm_predictions.*", "mask_predictions.*"),
            *HEADS,
        ),
        own=DistanceFacts,
        reads=True,
    )
)
class DebertaV2(Encoder):
    """BERT's layer with what scores make of distances; their rows are normed, and the same for all layers."""

    placed = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.learned_norm = LayerNorm(f"{LEARNED}_norm", config.width, config.eps)
        self.beside = 4 * config.heads * config.own.buckets  # for either sign of a distance, of queries and of keys

    def params(self) -> list[Param]:
        rows = Param(f"{LEARNED}.weight", (2 * self.config.own.buckets, self.config.width), plain=True)
        return [*super().params(), rows, *self.learned_norm.params()]

    def learned_weights(self, weights: Mapping[str, Any]) -> dict[str, StoredTensor]:
        rows = self.learned_norm(weights[f"{LEARNED}.weight"], weights)
        found: dict[str, StoredTensor] = {}
        for layer in self.layers:
            assert isinstance(layer.attention, DisentangledAttention)
            found |= layer.attention.learned(rows, weights)
        return found

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name, facts = f"layers.{index}", config.own
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        attention = DisentangledAttention(name, config, facts.buckets, facts.farthest)
        return EncoderLayer(first, attention, second, MLP(name, config, "gelu"), post=True)

    def head(self, config: EncoderConfig) -> Classifier:
        return Classifier(config.head_labels, config.width, dense=config.has_head_dense, bias=True, activation="gelu")
