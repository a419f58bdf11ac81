"""Hugging Face folders of BERT, DistilBERT, ERNIE, RoBERTa, XLM-RoBERTa and CamemBERT."""

from dataclasses import dataclass, replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import HF_LAYER_NORM_EPS, HF_TOKEN_TYPES, MAX_TOKEN_TYPES
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import SkipRows
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.bert import DISTILBERT, TASK_TYPES, Bert, BertConfig
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

# Unused rows at the start of RoBERTa's position table: that of fairseq's padding, and one more.
UNUSED_POSITIONS: Final = 2
PAD_TOKEN: Final = UNUSED_POSITIONS - 1
LAYER_PARAMETERS: Final = ("attn_q", "attn_k", "attn_v", "attn_o", "attn_norm", "ffn_up", "ffn_down", "ffn_norm")
BERT_LAYER_NAMES: Final = (
    *(f"attention.self.{part}" for part in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
DISTILBERT_LAYER_NAMES: Final = (
    *(f"attention.{part}_lin" for part in ("q", "k", "v", "out")),
    *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
)


@dataclass(frozen=True)
class BertNames:
    """The tensor names of BERT and its relatives.

    prefix             of the model in a class with a head
    dense, output      the layers of that head
    layer_names        the tensors of a layer, in the order of LAYER_PARAMETERS
    layer              prefix of their names
    unused_positions   rows at the start of the position table that no token uses
    """

    prefix: str
    dense: str
    output: str
    layer_names: tuple[str, ...] = BERT_LAYER_NAMES
    layer: str = "encoder.layer.{}."
    unused_positions: int = 0

    def tensors(self, prefix: str = "") -> TensorTable:
        """Return the table of tensors whose names have this prefix."""
        embeddings = f"{prefix}embeddings."
        names = {"embedding_norm": f"{embeddings}LayerNorm"}
        for name, stored in zip(LAYER_PARAMETERS, self.layer_names, strict=True):
            names[f"layers.{{}}.{name}"] = f"{prefix}{self.layer}{stored}"
        names |= {"classifier_dense": self.dense, "classifier": self.output}
        skipped = [SkipRows(self.unused_positions)] if self.unused_positions else []
        return {
            "embedding.weight": f"{embeddings}word_embeddings.weight",
            "types.weight": f"{embeddings}token_type_embeddings.weight",
            "positions.weight": StoredAs(f"{embeddings}position_embeddings.weight", *skipped),
            TASK_TYPES: f"{embeddings}task_type_embeddings.weight",
            **{f"{name}.{part}": f"{stored}.{part}" for name, stored in names.items() for part in PARTS},
        }


BERT: Final = BertNames("bert.", "bert.pooler.dense", "classifier")
ERNIE: Final = BertNames("ernie.", "ernie.pooler.dense", "classifier")
ROBERTA: Final = BertNames("roberta.", "classifier.dense", "classifier.out_proj", unused_positions=UNUSED_POSITIONS)
DISTILBERT_NAMES: Final = BertNames(
    "distilbert.", "pre_classifier", "classifier", DISTILBERT_LAYER_NAMES, "transformer.layer.{}."
)
PREFIXES: Final = ("bert.", "roberta.", "distilbert.", "ernie.")

BERT_HF_KEYS: Final = hf_keys(HF_LAYER_NORM_EPS, HF_TOKEN_TYPES, without=("head_dim", "kv_heads"))
BERT_DEFAULTS: Final = {
    "max_position_embeddings": 512,
    "vocab_size": 30522,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
BERT_SUPPORTED: Final = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
# DistilBERT's keys -> those of BERT.
DISTILBERT_KEYS: Final = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "activation": "hidden_act",
}
# Heads of the pretraining classes, which folders of embedding models may name too.
PRETRAINING_HEADS: Final = (
    *("cls.predictions.*", "cls.seq_relationship.*", "lm_head.*"),
    *("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"),
)


def ignored_bert_tensors(
    *prefixes: str, pooler: str = "pooler.dense", heads: tuple[str, ...] = PRETRAINING_HEADS
) -> tuple[str, ...]:
    """Return the tensors that are not read: `heads`, and those of the model under any of the prefixes or none."""
    fronts = ("", *prefixes)
    return (
        *(f"{front}embeddings.position_ids" for front in fronts),
        *(f"{front}{pooler}.{part}" for front in fronts for part in PARTS),
        *heads,
    )


class PaddedPositionsHfSchema(EncoderHfSchema):
    """Folders of encoders whose position table begins with UNUSED_POSITIONS rows.

    default_pad_token   default of `pad_token_id`; None: the key is required
    """

    default_pad_token: int | None = PAD_TOKEN

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        config = super().config_from_json(values, dtype)
        if values.integer("pad_token_id", 0, config.vocab, self.default_pad_token) != PAD_TOKEN:
            raise UnsupportedModel(
                f"{values.where}: pad_token_id must be {PAD_TOKEN}, from which positions are counted"
            )
        if config.context_length <= UNUSED_POSITIONS:
            what = f"max_position_embeddings is {config.context_length}"
            what = f"{what}; it must exceed the {UNUSED_POSITIONS} unused ones"
            raise ModelFileError(f"{values.where}: {what}")
        return replace(config, context_length=config.context_length - UNUSED_POSITIONS)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"max_position_embeddings": config.context_length + UNUSED_POSITIONS, **super().extra_json(config)}


class BertHfSchema(EncoderHfSchema):
    """Hugging Face folders of BERT and its relatives."""

    architecture = Bert
    keys = BERT_HF_KEYS
    defaults: dict[str, Any] = BERT_DEFAULTS
    constants = BERT_CONSTANTS
    supported = BERT_SUPPORTED
    optional_prefixes = PREFIXES
    ignored_tensors = ignored_bert_tensors(*PREFIXES)

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        found = as_encoder_config(config)
        return _CLASSES[found.model_type][bool(found.head_labels)]()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        given = {key: values.values[old] for old, key in DISTILBERT_KEYS.items() if old in values.values}
        values = values.with_values({**values.values, **given, **values.values})
        config = super().config_from_json(values, dtype)
        assert isinstance(config, BertConfig)
        has_task_types = values.flag("use_task_id", False)
        task_types = values.integer("task_type_vocab_size", 1, MAX_TOKEN_TYPES, 3) if has_task_types else 0
        return replace(config, model_type=self.model_type, task_types=task_types)


class RobertaHfSchema(PaddedPositionsHfSchema, BertHfSchema):
    """Hugging Face folders of RoBERTa and its relatives."""


@register
class BertModel(BertHfSchema):
    """BERT."""

    model_type = "bert"
    tensors = BERT.tensors()


@register
class BertForMaskedLM(BertModel):
    """BERT with its pretraining head."""


@register
class BertForPreTraining(BertModel):
    """BERT with its pretraining heads."""


@register
class BertForSequenceClassification(BertModel):
    """BERT with a classification head."""

    has_head = True
    tensors = BERT.tensors(BERT.prefix)


@register
class ErnieModel(BertHfSchema):
    """ERNIE."""

    model_type = "ernie"
    tensors = ERNIE.tensors()


@register
class ErnieForMaskedLM(ErnieModel):
    """ERNIE with its pretraining head."""


@register
class ErnieForPreTraining(ErnieModel):
    """ERNIE with its pretraining heads."""


@register
class ErnieForSequenceClassification(ErnieModel):
    """ERNIE with a classification head."""

    has_head = True
    tensors = ERNIE.tensors(ERNIE.prefix)


@register
class RobertaModel(RobertaHfSchema):
    """RoBERTa."""

    model_type = "roberta"
    defaults = {**BERT_DEFAULTS, "vocab_size": 50265}
    tensors = ROBERTA.tensors()


@register
class RobertaForMaskedLM(RobertaModel):
    """RoBERTa with its pretraining head."""


@register
class RobertaForSequenceClassification(RobertaModel):
    """RoBERTa with a classification head."""

    has_head = True
    tensors = ROBERTA.tensors(ROBERTA.prefix)


@register
class XLMRobertaModel(RobertaHfSchema):
    """XLM-RoBERTa."""

    model_type = "xlm-roberta"
    tensors = ROBERTA.tensors()


@register
class XLMRobertaForMaskedLM(XLMRobertaModel):
    """XLM-RoBERTa with its pretraining head."""


@register
class XLMRobertaForSequenceClassification(XLMRobertaModel):
    """XLM-RoBERTa with a classification head."""

    has_head = True
    tensors = ROBERTA.tensors(ROBERTA.prefix)


@register
class CamembertModel(RobertaHfSchema):
    """CamemBERT."""

    model_type = "camembert"
    tensors = ROBERTA.tensors()


@register
class CamembertForMaskedLM(CamembertModel):
    """CamemBERT with its pretraining head."""


@register
class CamembertForSequenceClassification(CamembertModel):
    """CamemBERT with a classification head."""

    has_head = True
    tensors = ROBERTA.tensors(ROBERTA.prefix)


@register
class DistilBertModel(BertHfSchema):
    """DistilBERT."""

    model_type = DISTILBERT
    defaults = {
        **BERT_DEFAULTS,
        "type_vocab_size": 0,
        "dim": 768,
        "hidden_dim": 3072,
        "n_layers": 6,
        "n_heads": 12,
    }
    key_names = {key: old for old, key in DISTILBERT_KEYS.items()}
    tensors = DISTILBERT_NAMES.tensors()

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        shape = {"dim": config.width, "hidden_dim": config.ffn, "n_layers": config.layers, "n_heads": config.heads}
        return {**super().extra_json(config), **shape, "activation": "gelu"}


@register
class DistilBertForMaskedLM(DistilBertModel):
    """DistilBERT with its pretraining head."""


@register
class DistilBertForSequenceClassification(DistilBertModel):
    """DistilBERT with a classification head."""

    has_head = True
    tensors = DISTILBERT_NAMES.tensors(DISTILBERT_NAMES.prefix)


# The class that a GGUF file is converted to, by model type: without and with a head.
_CLASSES: Final = {
    "bert": (BertModel, BertForSequenceClassification),
    "ernie": (ErnieModel, ErnieForSequenceClassification),
    "roberta": (RobertaModel, RobertaForSequenceClassification),
    "xlm-roberta": (XLMRobertaModel, XLMRobertaForSequenceClassification),
    "camembert": (CamembertModel, CamembertForSequenceClassification),
    DISTILBERT: (DistilBertModel, DistilBertForSequenceClassification),
}
