"""Hugging Face folders of ALBERT."""

from typing import Final

from sporelm.checkpoints.config_keys import activation_key, hf_keys
from sporelm.checkpoints.encoder_keys import HF_EMBEDDING_WIDTH, HF_LAYER_NORM_EPS, HF_TOKEN_TYPES
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import PRETRAINING_HEADS, BertNames, ignored_bert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.albert import Albert
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import WIDENED

NAMES: Final = BertNames(
    "albert.",
    "albert.pooler",
    "classifier",
    (
        *(f"attention.{part}" for part in ("query", "key", "value", "dense", "LayerNorm")),
        *("ffn", "ffn_output", "full_layer_layer_norm"),
    ),
    "encoder.albert_layer_groups.{}.albert_layers.0.",
)


def _tensors(prefix: str = "") -> TensorTable:
    widened = {f"{WIDENED}.{part}": f"{prefix}encoder.embedding_hidden_mapping_in.{part}" for part in PARTS}
    return {**NAMES.tensors(prefix), **widened}


@register
class AlbertModel(EncoderHfSchema):
    """ALBERT."""

    model_type = "albert"
    architecture = Albert
    keys = hf_keys(
        HF_LAYER_NORM_EPS,
        activation_key("hidden_act", "gelu_new"),
        HF_TOKEN_TYPES,
        HF_EMBEDDING_WIDTH,
        without=("head_dim", "kv_heads"),
    )
    defaults = {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    constants = BERT_CONSTANTS
    supported = {"num_hidden_groups": (1,), "inner_group_num": (1,), "position_embedding_type": ("absolute",)}
    tensors = _tensors()
    optional_prefixes = (NAMES.prefix,)
    ignored_tensors = ignored_bert_tensors(
        NAMES.prefix, pooler="pooler", heads=("predictions.*", "sop_classifier.*", *PRETRAINING_HEADS)
    )

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return AlbertForSequenceClassification() if as_encoder_config(config).head_labels else AlbertModel()


@register
class AlbertForMaskedLM(AlbertModel):
    """ALBERT with its pretraining head."""


@register
class AlbertForPreTraining(AlbertModel):
    """ALBERT with its pretraining heads."""


@register
class AlbertForSequenceClassification(AlbertModel):
    """ALBERT with a classification head."""

    has_head = True
    tensors = _tensors(NAMES.prefix)
