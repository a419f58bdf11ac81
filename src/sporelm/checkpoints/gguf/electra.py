"""GGUF files of ELECTRA. Only this engine writes them; their tensors have the names of BERT's."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import GGUF_EMBEDDING_WIDTH, GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema, without_equal_embedding_width
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS, BERT_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.electra import Electra
from sporelm.models.encoder import WIDENED
from sporelm.models.encoder_config import EncoderConfig

WIDENED_TENSORS: Final[TensorTable] = {f"{WIDENED}.{part}": f"token_embd_widened.{part}" for part in PARTS}


@register
class ElectraGguf(EncoderGgufSchema):
    """`electra`."""

    names = ("electra",)
    architecture = Electra
    keys = gguf_keys(GGUF_LAYER_NORM_EPS, GGUF_EMBEDDING_WIDTH, without=("head_dim", "kv_heads", "rotary", "window"))
    constants = BERT_CONSTANTS
    tensors = BERT_TENSORS | WIDENED_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        return without_equal_embedding_width(super().config_from_metadata(gguf, values))
