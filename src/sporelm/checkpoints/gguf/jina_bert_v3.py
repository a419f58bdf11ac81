"""GGUF files of Jina Embeddings v3."""

from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_TENSORS
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf.gte import ROTARY_BERT_GGUF_KEYS
from sporelm.checkpoints.gguf_tensors import FUSED_QKV_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bert import Bert


@register
class JinaBertV3Gguf(EncoderGgufSchema):
    """`jina-bert-v3`. It is BERT with rotary positions (Sturua et al. 2024)."""

    names = ("jina-bert-v3",)
    architecture = Bert
    keys = ROTARY_BERT_GGUF_KEYS
    constants = ALL_BIASES
    tensors = {**BERT_TENSORS, **FUSED_QKV_TENSORS}
