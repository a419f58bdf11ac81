"""GGUF files of Seed-OSS."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, POST_ATTENTION_AS_FFN_NORM
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class SeedOssGguf(GgufSchema):
    """`seed_oss`: Llama with biases on query, key and value (ByteDance Seed team 2025)."""

    names = ("seed_oss",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS | POST_ATTENTION_AS_FFN_NORM
