"""BERT, RoBERTa and XLM-RoBERTa: bge, e5, MiniLM and their kin, and rerankers made of them."""

from dataclasses import replace
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import MLP, LayerNorm, TextAttention, TextLayer
from sporelm.models.encoder import Encoder
from sporelm.models.families.bert_names import BEFORE, CLASSES
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, labels_of, noticed, said
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import HF, Kind


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    found = next(one for one in CLASSES if one.name == config.architecture)
    facts = replace(config.own, kind=found.model_type)
    if found.name.endswith("Classification"):
        facts = replace(facts, labels=labels_of(values), dense=True)
    if facts.kind == "bert":
        return replace(config, own=facts)
    if values.integer("pad_token_id", 0, config.vocab, BEFORE - 1) != BEFORE - 1:
        raise UnsupportedModel(f"{values.where}: pad_token_id must be {BEFORE - 1}: positions are counted from it")
    return replace(config, own=facts, context_length=config.context_length - BEFORE)


def _class(config: ModelConfig) -> str:
    name = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta"}.get(config.own.kind, "Bert")
    return f"{name}{'ForSequenceClassification' if config.own.labels else 'Model'}"


def _words(config: ModelConfig) -> dict[str, Any]:
    before = 0 if config.own.kind == "bert" else BEFORE
    labels = {str(label): f"LABEL_{label}" for label in range(config.own.labels)}
    return {"max_position_embeddings": config.context_length + before} | ({"id2label": labels} if labels else {})


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
        noticed=noticed,
        said=lambda config: said(config, "bert"),
        choose=_class,
        words=_words,
        ignored=(
            *(f"{prefix}embeddings.position_ids" for prefix in ("", "bert.", "roberta.")),
            *(f"{prefix}pooler.dense.{kind}" for prefix in ("", "roberta.") for kind in ("weight", "bias")),
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

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.config.width, self.config.eps)
