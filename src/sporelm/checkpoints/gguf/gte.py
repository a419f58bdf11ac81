"""GGUF files of GTE. Only this engine writes them."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.encoder_keys import GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_TENSORS
from sporelm.checkpoints.gguf_tensors import FUSED_QKV_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gte import Gte

# Keys of BERT with rotary positions.
ROTARY_BERT_GGUF_KEYS: Final = gguf_keys(GGUF_LAYER_NORM_EPS, without=("head_dim", "kv_heads", "window"))
GTE_CONSTANTS: Final = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": False}


@register
class GteGguf(EncoderGgufSchema):
    """`gte`."""

    names = ("gte",)
    architecture = Gte
    keys = ROTARY_BERT_GGUF_KEYS
    constants = GTE_CONSTANTS
    tensors = {**BERT_TENSORS, **FUSED_QKV_TENSORS}
