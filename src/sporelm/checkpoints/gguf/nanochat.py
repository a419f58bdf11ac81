"""GGUF files of nanochat."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nanochat import NanoChat


@register
class NanoChatGguf(GgufSchema):
    """`nanochat`."""

    names = ("nanochat",)
    architecture = NanoChat
    keys = gguf_keys(LOGIT_CAP_KEY, without=("window",))
    tensors = DECODER_TENSORS
