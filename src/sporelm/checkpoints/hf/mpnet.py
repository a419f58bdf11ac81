"""Hugging Face folders of MPNet."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.encoder_keys import HF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS
from sporelm.checkpoints.hf.bert import (
    PAD_TOKEN,
    UNUSED_POSITIONS,
    BertNames,
    PaddedPositionsHfSchema,
    ignored_bert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.mpnet import MPNet
from sporelm.models.biased_encoder import DISTANCE_BIASES
from sporelm.models.config import ModelConfig
from sporelm.models.distances import BUCKETS

NAMES: Final = BertNames(
    "mpnet.",
    "classifier.dense",
    "classifier.out_proj",
    (
        *(f"attention.attn.{part}" for part in "qkvo"),
        *("attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    unused_positions=UNUSED_POSITIONS,
)


def _tensors(prefix: str = "") -> TensorTable:
    return {**NAMES.tensors(prefix), DISTANCE_BIASES: f"{prefix}encoder.relative_attention_bias.weight"}


@register
class MPNetModel(PaddedPositionsHfSchema):
    """MPNet."""

    model_type = "mpnet"
    architecture = MPNet
    keys = hf_keys(HF_LAYER_NORM_EPS, without=("head_dim", "kv_heads"))
    defaults = {
        "max_position_embeddings": 512,
        "vocab_size": 30527,
        "layer_norm_eps": 1e-12,
        "pad_token_id": PAD_TOKEN,
    }
    constants = BERT_CONSTANTS
    supported = {"hidden_act": ("gelu",), "relative_attention_num_buckets": (BUCKETS,)}
    tensors = _tensors()
    optional_prefixes = (NAMES.prefix,)
    ignored_tensors = ignored_bert_tensors(NAMES.prefix)
    default_pad_token = None

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return MPNetForSequenceClassification() if as_encoder_config(config).head_labels else MPNetModel()

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"pad_token_id": PAD_TOKEN, **super().extra_json(config)}


@register
class MPNetForMaskedLM(MPNetModel):
    """MPNet with its pretraining head."""


@register
class MPNetForSequenceClassification(MPNetModel):
    """MPNet with a classification head."""

    has_head = True
    tensors = _tensors(NAMES.prefix)
