"""BERT, DistilBERT, RoBERTa, XLM-RoBERTa and CamemBERT: bge, e5, MiniLM and their kin, and rerankers of them."""

from dataclasses import replace
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import MLP, Classifier, TextAttention, TextLayer
from sporelm.models.encoder import Encoder
from sporelm.models.families.bert_names import BEFORE, CLASSES, HEADS, TITLES, reworded
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, label_words, labels_of, noticed, said
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import HF, Kind

FRONTS = ("bert.", "roberta.", "distilbert.")  # of the model in classes with a head
UNSHIFTED = ("bert", "distilbert")  # positions begin with the first row of their table


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    found = next(one for one in CLASSES if one.name == config.architecture)
    facts = replace(config.own, kind=found.model_type)
    if found.name.endswith("Classification"):
        facts = replace(facts, labels=labels_of(values), dense=True)
    if facts.kind in UNSHIFTED:
        return replace(config, own=facts)
    if values.integer("pad_token_id", 0, config.vocab, BEFORE - 1) != BEFORE - 1:
        raise UnsupportedModel(f"{values.where}: pad_token_id must be {BEFORE - 1}: positions are counted from it")
    return replace(config, own=facts, context_length=config.context_length - BEFORE)


def _noticed(config: ModelConfig, metadata: Any, shapes: Any) -> ModelConfig:
    config = noticed(config, metadata, shapes)
    facts: TextFacts = config.own
    return (
        replace(config, own=replace(facts, kind="distilbert")) if facts.kind == "bert" and not facts.types else config
    )


def _class(config: ModelConfig) -> str:
    return f"{TITLES[config.own.kind]}{'ForSequenceClassification' if config.own.labels else 'Model'}"


def _words(config: ModelConfig) -> dict[str, Any]:
    before = 0 if config.own.kind in UNSHIFTED else BEFORE
    found = {"max_position_embeddings": config.context_length + before} | label_words(config)
    if config.own.kind != "distilbert":
        return found
    numbers = {"dim": config.width, "hidden_dim": config.ffn, "n_layers": config.layers, "n_heads": config.heads}
    return found | numbers | {"activation": "gelu"}


def _unsaid(config: ModelConfig) -> str:
    lost = config.own.kind == "distilbert" and config.own.labels
    return "its head has ReLU" if lost else ""


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
        choose=_class,
        words=_words,
        reworded=reworded,
        unsaid=_unsaid,
        fronts=FRONTS,
        ignored=(
            *(f"{front}embeddings.position_ids" for front in ("", *FRONTS)),
            *(f"{front}pooler.dense.{kind}" for front in ("", *FRONTS) for kind in ("weight", "bias")),
            *HEADS,
        ),
        own=TextFacts,
        reads=True,
    )
)
class Bert(Encoder):
    """Tokens, their types and their positions added; a norm after each sum; GELU (Devlin et al. 2019)."""

    def layer(self, config: ModelConfig, index: int) -> TextLayer:
        name = f"layers.{index}"
        norms = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return TextLayer(next(norms), TextAttention(name, config), next(norms), MLP(name, config, "gelu"), post=True)

    def head(self, config: ModelConfig, facts: TextFacts) -> Classifier:
        activation = "relu" if facts.kind == "distilbert" else "tanh"
        return Classifier(facts.labels, config.width, dense=facts.dense, bias=True, activation=activation)
