"""GGUF files of OLMo 1."""

from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo import Olmo

MIN_CLIP: Final = 1e-6
MAX_CLIP: Final = 1e6


@register
class OlmoGguf(GgufSchema):
    """`olmo`. Queries and keys are permuted."""

    names = ("olmo",)
    architecture = Olmo
    keys = gguf_keys(
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("qkv_limit", "attention.clamp_kqv", "f32", MIN_CLIP, MAX_CLIP, OPTIONAL),
        without=("window",),
    )
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS
