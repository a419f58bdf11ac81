"""Hugging Face folders of EuroBERT."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, without_prefix
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.eurobert import EuroBert
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

# Values of `classifier_pooling`, and of the authors' `clf_pooling` -> `EncoderConfig.head_pooling`.
HEAD_POOLING: Final = {"bos": "cls", "mean": "mean", "late": "late"}
MODEL_TENSORS: Final[TensorTable] = {name: row for name, row in DECODER_TENSORS.items() if name != "output.weight"}
HEAD_TENSORS: Final[TensorTable] = {
    **{f"classifier_dense.{part}": f"dense.{part}" for part in PARTS},
    **{f"classifier.{part}": f"classifier.{part}" for part in PARTS},
}


@register
class EuroBertModel(EncoderHfSchema):
    """EuroBERT."""

    model_type = "eurobert"
    architecture = EuroBert
    keys = hf_keys(
        Key("head_pooling", "classifier_pooling", "str", default="late", choices=tuple(HEAD_POOLING.values()))
    )
    defaults = {"max_position_embeddings": 8192, "vocab_size": 128256, "rms_norm_eps": 1e-5}
    supported = {"hidden_act": ("silu",), **dict.fromkeys(("attention_bias", "mlp_bias"), (False,))}
    tensors = {**without_prefix(MODEL_TENSORS), **HEAD_TENSORS}
    optional_prefixes = ("model.",)
    ignored_tensors = ("lm_head.weight",)

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        return EuroBertForSequenceClassification() if as_encoder_config(config).head_labels else EuroBertModel()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        pooling = values.get("clf_pooling", values.get("classifier_pooling", "late"))
        pooling = HEAD_POOLING.get(pooling, pooling) if isinstance(pooling, str) else pooling
        return super().config_from_json(values.with_changes({"classifier_pooling": pooling}), dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        head_pooling = as_encoder_config(config).head_pooling
        pooling = next(word for word, name in HEAD_POOLING.items() if name == head_pooling)
        return {"classifier_pooling": pooling, **super().extra_json(config)}


@register
class EuroBertForMaskedLM(EuroBertModel):
    """EuroBERT with its pretraining head."""


@register
class EuroBertForSequenceClassification(EuroBertModel):
    """EuroBERT with a classification head."""

    has_head = True
    tensors = {**MODEL_TENSORS, **HEAD_TENSORS}
