"""BERT, DistilBERT, ERNIE 1 to 3, RoBERTa, XLM-RoBERTa and CamemBERT: bge, e5, MiniLM, and rerankers of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.checkpoints.family import Family, Field, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.models.blocks import MLP, Classifier, EncoderAttention, EncoderLayer
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_inputs import EncoderInputs
from sporelm.models.families.bert_names import CLASSES, HEADS, BertFacts
from sporelm.models.families.bert_words import UNSHIFTED, after_padding, class_of, reworded, unsaid, words
from sporelm.models.params import Param
from sporelm.models.registry import architecture
from sporelm.models.text_facts import MOST_TYPES, TYPES, TextFacts, labels_of, noticed, said

FRONTS = ("bert.", "roberta.", "distilbert.", "ernie.")  # of the model in classes with a head
TASKS, FIRST_TASK = "tasks.weight", "first_task"  # the second: its row for every position


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    found = next(one for one in CLASSES if one.name == config.architecture)
    facts: BertFacts = replace(config.own, kind=found.model_type)
    if values.flag("use_task_id", False):
        facts = replace(facts, tasks=values.integer("task_type_vocab_size", 1, MOST_TYPES, 3))
    if found.name.endswith("Classification"):
        facts = replace(facts, labels=labels_of(values), dense=True)
    if facts.kind in UNSHIFTED:
        return replace(config, own=facts)
    return after_padding(replace(config, own=facts), values)


def _noticed(config: ModelConfig, metadata: Any, shapes: Any) -> ModelConfig:
    config = noticed(config, metadata, shapes)
    facts: TextFacts = config.own
    return (
        replace(config, own=replace(facts, kind="distilbert")) if facts.kind == "bert" and not facts.types else config
    )


@architecture(
    Family(
        "bert",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        CLASSES[0].names,
        fixed={"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={
            "hidden_act": ("gelu",),
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        finish=_finished,
        noticed=_noticed,
        said=lambda config: said(config, "bert"),
        choose=class_of,
        words=words,
        reworded=reworded,
        unsaid=unsaid,
        fronts=FRONTS,
        ignored=(
            *(f"{front}embeddings.position_ids" for front in ("", *FRONTS)),
            *(f"{front}pooler.dense.{kind}" for front in ("", *FRONTS) for kind in ("weight", "bias")),
            *HEADS,
        ),
        own=BertFacts,
        reads=True,
    )
)
class Bert(Encoder):
    """Tokens, their types and positions added; a norm after each sum; GELU (Devlin et al. 2019)."""

    def params(self) -> list[Param]:
        tasks = self.config.own.tasks
        return [*super().params(), *([Param(TASKS, (tasks, self.config.width), plain=True)] if tasks else [])]

    def learned_tables(self, weights: Mapping[str, Any], context: int) -> dict[str, np.ndarray]:
        first = weights[TASKS].numpy()[:1] if self.config.own.tasks else np.empty((0, 0), np.float32)
        return {FIRST_TASK: np.repeat(first, context, axis=0)} if len(first) else {}

    def embedded(self, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:
        x = super().embedded(texts, weights)
        return ops.add(x, ops.select_rows(weights[FIRST_TASK], texts.positions)) if FIRST_TASK in weights else x

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        norms = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(
            next(norms), EncoderAttention(name, config), next(norms), MLP(name, config, "gelu"), post=True
        )

    def head(self, config: ModelConfig, facts: TextFacts) -> Classifier:
        activation = "relu" if facts.kind == "distilbert" else "tanh"
        return Classifier(facts.labels, config.width, dense=facts.dense, bias=True, activation=activation)
