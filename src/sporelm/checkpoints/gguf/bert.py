"""GGUF files of BERT, DistilBERT, ERNIE, RoBERTa, XLM-RoBERTa and CamemBERT."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema, as_encoder_config
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import ATTENTION_TENSORS, MLP_TENSORS, PARTS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.bert import DISTILBERT, TASK_TYPES, Bert, BertConfig
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig

BERT_GGUF_KEYS: Final = gguf_keys(GGUF_LAYER_NORM_EPS, without=("head_dim", "kv_heads", "rotary", "window"))
BERT_CONSTANTS: Final = {"rotary": 0, **ALL_BIASES}
# Post-norms, embeddings and the head: parameters -> stored names, both without ".weight" and ".bias".
_NORMS_AND_HEAD: Final = {
    "embedding_norm": "token_embd_norm",
    "layers.{}.attn_norm": "blk.{}.attn_output_norm",
    "layers.{}.ffn_norm": "blk.{}.layer_output_norm",
    "classifier_dense": "cls",
    "classifier": "cls.output",
}
BERT_TENSORS: Final[TensorTable] = {
    "embedding.weight": "token_embd.weight",
    "types.weight": "token_types.weight",
    "positions.weight": "position_embd.weight",
    **ATTENTION_TENSORS,
    **MLP_TENSORS,
    **{f"{name}.{part}": f"{stored}.{part}" for name, stored in _NORMS_AND_HEAD.items() for part in PARTS},
}
# `tokenizer.ggml.model` -> the model type of folders that have such a tokenizer.
TOKENIZER_MODEL_TYPES: Final = {"bert": "bert", "t5": "xlm-roberta", "gpt2": "roberta"}


def tokenizer_model_type(gguf: GgufModel) -> str:
    """Return the model type of folders that have the tokenizer of a GGUF file."""
    tokenizer = gguf.metadata.get("tokenizer.ggml.model")
    return TOKENIZER_MODEL_TYPES.get(tokenizer, "bert") if isinstance(tokenizer, str) else "bert"


@register
class BertGguf(EncoderGgufSchema):
    """`bert`."""

    names = ("bert",)
    architecture = Bert
    keys = BERT_GGUF_KEYS
    constants = BERT_CONSTANTS
    tensors = {**BERT_TENSORS, TASK_TYPES: "task_types.weight"}

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        config = super().config_from_metadata(gguf, values)
        model_type = tokenizer_model_type(gguf)
        if model_type == "bert" and not config.token_types:
            model_type = DISTILBERT
        return replace(config, model_type=model_type)

    def find_unsupported(self, config: ModelConfig) -> str:
        if as_encoder_config(config).model_type == DISTILBERT and as_encoder_config(config).head_labels:
            return "its head uses ReLU"
        assert isinstance(config, BertConfig)
        return "it has task embeddings" if config.task_types else ""
