"""Hugging Face folders of Megatron-BERT and XLM-RoBERTa-XL."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS
from sporelm.checkpoints.gguf.megatron_bert import MEGATRON_BERT, XLM_ROBERTA_XL
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import (
    BERT_HF_KEYS,
    UNUSED_POSITIONS,
    BertNames,
    PaddedPositionsHfSchema,
    ignored_bert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.megatron_bert import MegatronBert
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

_ATTENTION: Final = (*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense")
_MLP: Final = ("intermediate.dense", "output.dense")
MEGATRON_NAMES: Final = BertNames(
    "bert.", "bert.pooler.dense", "classifier", (*_ATTENTION, "attention.ln", *_MLP, "ln")
)
XL_NAMES: Final = BertNames(
    "roberta.",
    "classifier.dense",
    "classifier.out_proj",
    (*_ATTENTION, "attention.self_attn_layer_norm", *_MLP, "LayerNorm"),
    unused_positions=UNUSED_POSITIONS,
)
PREFIXES: Final = (MEGATRON_NAMES.prefix, XL_NAMES.prefix)


def _tensors(names: BertNames, last_norm: str, prefix: str = "") -> TensorTable:
    return {
        **names.tensors(prefix),
        **{f"output_norm.{part}": f"{prefix}encoder.{last_norm}.{part}" for part in PARTS},
    }


class MegatronBertHfSchema(EncoderHfSchema):
    """Hugging Face folders of either model type."""

    architecture = MegatronBert
    keys = BERT_HF_KEYS
    constants = BERT_CONSTANTS
    supported = {"hidden_act": ("gelu",), "is_decoder": (False,), "add_cross_attention": (False,)}
    optional_prefixes = PREFIXES
    ignored_tensors = ignored_bert_tensors(*PREFIXES)

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        found = as_encoder_config(config)
        return _CLASSES[found.model_type][bool(found.head_labels)]()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        return replace(super().config_from_json(values, dtype), model_type=self.model_type)


@register
class MegatronBertModel(MegatronBertHfSchema):
    """Megatron-BERT."""

    model_type = MEGATRON_BERT
    defaults = {
        "layer_norm_eps": 1e-12,
        "vocab_size": 29056,
        "type_vocab_size": 2,
        "max_position_embeddings": 512,
    }
    tensors = _tensors(MEGATRON_NAMES, "ln")


@register
class MegatronBertForMaskedLM(MegatronBertModel):
    """Megatron-BERT with its pretraining head."""


@register
class MegatronBertForSequenceClassification(MegatronBertModel):
    """Megatron-BERT with a classification head."""

    has_head = True
    tensors = _tensors(MEGATRON_NAMES, "ln", MEGATRON_NAMES.prefix)


@register
class XLMRobertaXLModel(PaddedPositionsHfSchema, MegatronBertHfSchema):
    """XLM-RoBERTa-XL."""

    model_type = XLM_ROBERTA_XL
    defaults = {
        "layer_norm_eps": 1e-5,
        "vocab_size": 250880,
        "type_vocab_size": 1,
        "max_position_embeddings": 514,
    }
    tensors = _tensors(XL_NAMES, "LayerNorm")


@register
class XLMRobertaXLForMaskedLM(XLMRobertaXLModel):
    """XLM-RoBERTa-XL with its pretraining head."""


@register
class XLMRobertaXLForSequenceClassification(XLMRobertaXLModel):
    """XLM-RoBERTa-XL with a classification head."""

    has_head = True
    tensors = _tensors(XL_NAMES, "LayerNorm", XL_NAMES.prefix)


# The class that a GGUF file is converted to, by model type: without and with a head.
_CLASSES: Final = {
    MEGATRON_BERT: (MegatronBertModel, MegatronBertForSequenceClassification),
    XLM_ROBERTA_XL: (XLMRobertaXLModel, XLMRobertaXLForSequenceClassification),
}
