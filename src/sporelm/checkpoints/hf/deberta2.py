"""Hugging Face folders of DeBERTa v2 and v3."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import HF_LAYER_NORM_EPS, HF_TOKEN_TYPES
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS
from sporelm.checkpoints.gguf.deberta2 import BUCKETS, MAX_DISTANCE, with_distances
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import PRETRAINING_HEADS, BertNames
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.deberta2 import DISTANCES, DebertaV2
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

NAMES: Final = BertNames(
    "deberta.",
    "pooler.dense",
    "classifier",
    (
        *(f"attention.self.{part}_proj" for part in ("query", "key", "value")),
        *("attention.output.dense", "attention.output.LayerNorm"),
        *("intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
)
# Options of attention: the defaults of the class, and the values of published folders.
CLASS_ATTENTION: Final[dict[str, Any]] = {
    "relative_attention": False,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "pos_att_type": "none",
    "position_biased_input": True,
}
ATTENTION: Final[dict[str, Any]] = {
    "relative_attention": True,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
}


def _tensors(prefix: str = "") -> TensorTable:
    return {
        **NAMES.tensors(prefix),
        f"{DISTANCES}.weight": f"{prefix}encoder.rel_embeddings.weight",
        **{f"{DISTANCES}_norm.{part}": f"{prefix}encoder.LayerNorm.{part}" for part in PARTS},
    }


@register
class DebertaV2Model(EncoderHfSchema):
    """DeBERTa."""

    model_type = "deberta-v2"
    architecture = DebertaV2
    keys = hf_keys(
        HF_LAYER_NORM_EPS,
        HF_TOKEN_TYPES,
        BUCKETS._replace(key="position_buckets"),
        MAX_DISTANCE._replace(key="max_relative_positions"),
        without=("head_dim", "kv_heads"),
    )
    defaults = {
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    }
    constants = BERT_CONSTANTS
    supported = {
        "hidden_act": ("gelu",),
        "pooler_hidden_act": ("gelu",),
        "conv_kernel_size": (0,),
        **{key: (value,) for key, value in ATTENTION.items()},
    }
    tensors = _tensors()
    optional_prefixes = (NAMES.prefix,)
    ignored_tensors = (
        *(f"{front}embeddings.position_{end}" for front in ("", NAMES.prefix) for end in ("ids", "embeddings.weight")),
        *("pooler.dense.*", "lm_predictions.*", "mask_predictions.*"),
        *PRETRAINING_HEADS,
    )

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return DebertaV2ForSequenceClassification() if as_encoder_config(config).head_labels else DebertaV2Model()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        values = values.with_values(_with_attention_options(dict(values.values)))
        config = with_distances(super().config_from_json(values, dtype), values)
        if values.integer("embedding_size", 1, MAX_CONTEXT, config.width) != config.width:
            raise UnsupportedModel(f"{values.where}: embedding_size must be hidden_size, {config.width}")
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**ATTENTION, **super().extra_json(config)}


@register
class DebertaV2ForMaskedLM(DebertaV2Model):
    """DeBERTa with its pretraining head."""


@register
class DebertaV2ForSequenceClassification(DebertaV2Model):
    """DeBERTa with a classification head."""

    has_head = True
    tensors = _tensors(NAMES.prefix)


def _with_attention_options(json: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json without nulls, with all options of attention, and with the kinds of scores in ATTENTION's
    order."""
    found = CLASS_ATTENTION | {key: value for key, value in json.items() if value is not None}
    kinds = found["pos_att_type"]
    parts = kinds.split("|") if isinstance(kinds, str) else kinds if isinstance(kinds, list) else [kinds]
    return found | {"pos_att_type": "|".join(sorted(str(part).strip().lower() for part in parts))}
