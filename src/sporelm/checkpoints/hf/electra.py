"""Hugging Face folders of ELECTRA."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import HF_EMBEDDING_WIDTH, HF_LAYER_NORM_EPS, HF_TOKEN_TYPES
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config, without_equal_embedding_width
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import BERT_SUPPORTED, PRETRAINING_HEADS, BertNames
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.electra import Electra
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import WIDENED
from sporelm.models.encoder_config import EncoderConfig

NAMES: Final = BertNames("electra.", "classifier.dense", "classifier.out_proj")


def _tensors(prefix: str = "") -> TensorTable:
    widened = {f"{WIDENED}.{part}": f"{prefix}embeddings_project.{part}" for part in PARTS}
    return {**NAMES.tensors(prefix), **widened}


@register
class ElectraModel(EncoderHfSchema):
    """ELECTRA."""

    model_type = "electra"
    architecture = Electra
    keys = hf_keys(HF_LAYER_NORM_EPS, HF_TOKEN_TYPES, HF_EMBEDDING_WIDTH, without=("head_dim", "kv_heads"))
    defaults = {
        "vocab_size": 30522,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    constants = BERT_CONSTANTS
    supported = BERT_SUPPORTED
    tensors = _tensors()
    optional_prefixes = (NAMES.prefix,)
    ignored_tensors = (
        *(f"{front}embeddings.position_ids" for front in ("", NAMES.prefix)),
        *("generator_predictions.*", "generator_lm_head.*", "discriminator_predictions.*"),
        *PRETRAINING_HEADS,
    )

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return ElectraForSequenceClassification() if as_encoder_config(config).head_labels else ElectraModel()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        return without_equal_embedding_width(super().config_from_json(values, dtype))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        width = as_encoder_config(config).embedding_width or config.width
        return {"embedding_size": width, **super().extra_json(config)}


@register
class ElectraForMaskedLM(ElectraModel):
    """ELECTRA with its pretraining head."""


@register
class ElectraForPreTraining(ElectraModel):
    """ELECTRA with its pretraining head."""


@register
class ElectraForSequenceClassification(ElectraModel):
    """ELECTRA with a classification head."""

    has_head = True
    tensors = _tensors(NAMES.prefix)
