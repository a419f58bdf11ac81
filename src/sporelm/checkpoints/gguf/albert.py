"""GGUF files of ALBERT. Only this engine writes them."""

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, activation_key, gguf_keys
from sporelm.checkpoints.encoder_keys import GGUF_EMBEDDING_WIDTH, GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS, BERT_TENSORS
from sporelm.checkpoints.gguf.electra import WIDENED_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.albert import Albert


@register
class AlbertGguf(EncoderGgufSchema):
    """`albert`."""

    names = ("albert",)
    architecture = Albert
    keys = gguf_keys(
        GGUF_LAYER_NORM_EPS,
        activation_key(GGUF_ACTIVATION_KEY, "gelu_new"),
        GGUF_EMBEDDING_WIDTH,
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = BERT_CONSTANTS
    tensors = BERT_TENSORS | WIDENED_TENSORS
