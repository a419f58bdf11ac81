"""GGUF files of Maincoder."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hunyuan import Hunyuan


@register
class MaincoderGguf(GgufSchema):
    """`maincoder`: heads are rotated by adjacent pairs, as in Llama 4 (Maincode 2025)."""

    names = ("maincoder",)
    architecture = Hunyuan
    keys = gguf_keys(Key("ffn", "feed_forward_length", "u32"), without=("window",))
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS
