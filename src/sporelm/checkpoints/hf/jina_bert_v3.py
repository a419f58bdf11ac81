"""Hugging Face folders of Jina Embeddings v3 in the format of transformers: without the adapters of its tasks."""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import BERT_HF_KEYS, PRETRAINING_HEADS
from sporelm.checkpoints.hf_tensors import fused_qkv_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.bert import Bert
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

PREFIX: Final = "roberta."
DEFAULT_THETA: Final = 20000.0


def _tensors(prefix: str = "") -> TensorTable:
    embeddings, layer = f"{prefix}embeddings.", f"{prefix}encoder.layers.{{}}."
    names = {
        "embedding_norm": f"{prefix}emb_ln",
        "layers.{}.attn_o": f"{layer}mixer.out_proj",
        "layers.{}.attn_norm": f"{layer}norm1",
        "layers.{}.ffn_up": f"{layer}mlp.fc1",
        "layers.{}.ffn_down": f"{layer}mlp.fc2",
        "layers.{}.ffn_norm": f"{layer}norm2",
        "classifier_dense": "classifier.dense",
        "classifier": "classifier.out_proj",
    }
    return {
        "embedding.weight": f"{embeddings}word_embeddings.weight",
        "types.weight": f"{embeddings}token_type_embeddings.weight",
        **fused_qkv_tensors(f"{layer}mixer.Wqkv"),
        **{f"{name}.{part}": f"{stored}.{part}" for name, stored in names.items() for part in PARTS},
    }


@register
class JinaEmbeddingsV3Model(EncoderHfSchema):
    """Jina Embeddings v3."""

    model_type = "jina_embeddings_v3"
    architecture = Bert
    keys = BERT_HF_KEYS
    defaults = {
        "max_position_embeddings": 8194,
        "vocab_size": 250002,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    constants = ALL_BIASES
    supported = {"hidden_act": ("gelu",), "is_decoder": (False,)}
    tensors = _tensors()
    optional_prefixes = (PREFIX,)
    ignored_tensors = (*PRETRAINING_HEADS, *(f"{prefix}pooler.dense.*" for prefix in ("", PREFIX)))

    def class_for(self, config: ModelConfig) -> EncoderHfSchema:
        has_head = bool(as_encoder_config(config).head_labels)
        return JinaEmbeddingsV3ForSequenceClassification() if has_head else JinaEmbeddingsV3Model()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        return super().config_from_json(values.with_values({"rope_theta": DEFAULT_THETA, **values.values}), dtype)


@register
class JinaEmbeddingsV3ForMaskedLM(JinaEmbeddingsV3Model):
    """Jina Embeddings v3 with its pretraining head."""


@register
class JinaEmbeddingsV3ForSequenceClassification(JinaEmbeddingsV3Model):
    """Jina Embeddings v3 with a classification head."""

    has_head = True
    tensors = _tensors(PREFIX)
