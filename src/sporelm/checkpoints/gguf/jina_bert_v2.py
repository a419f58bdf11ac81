"""GGUF files of Jina Embeddings v2."""

from typing import Final

from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_GGUF_KEYS, BERT_TENSORS
from sporelm.checkpoints.gguf.gte import GTE_CONSTANTS
from sporelm.checkpoints.gguf_tensors import FUSED_GATE_UP_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.gte import Gte

JINA_BERT_CONSTANTS: Final = {"rotary": 0, "alibi": 8.0, **GTE_CONSTANTS}
# BERT without a classification head.
HEADLESS_BERT_TENSORS: Final[TensorTable] = {
    name: row for name, row in BERT_TENSORS.items() if not name.startswith("classifier")
}


@register
class JinaBertGguf(EncoderGgufSchema):
    """`jina-bert-v2`."""

    names = ("jina-bert-v2",)
    architecture = Gte
    keys = BERT_GGUF_KEYS
    constants = JINA_BERT_CONSTANTS
    tensors = {**HEADLESS_BERT_TENSORS, **FUSED_GATE_UP_TENSORS}
