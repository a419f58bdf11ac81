"""GGUF files of MPNet. Only this engine writes them."""

from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS, BERT_GGUF_KEYS, BERT_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.mpnet import MPNet
from sporelm.models.biased_encoder import DISTANCE_BIASES


@register
class MPNetGguf(EncoderGgufSchema):
    """`mpnet`. The relative attention bias has the same name as in T5's files, but without a layer."""

    names = ("mpnet",)
    architecture = MPNet
    keys = BERT_GGUF_KEYS
    constants = BERT_CONSTANTS
    tensors = {**BERT_TENSORS, DISTANCE_BIASES: "attn_rel_b.weight"}
