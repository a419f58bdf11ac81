"""GGUF files of HyperCLOVA X SEED Think."""

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys, with_keys
from sporelm.checkpoints.gguf.granite import GRANITE_KEYS, MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hyperclovax import HyperClovaX


@register
class HyperClovaXGguf(GgufSchema):
    """`hyperclovax`. The logits are multiplied by their scale, unlike Granite's."""

    names = ("hyperclovax",)
    architecture = HyperClovaX
    keys = gguf_keys(
        *with_keys(
            GRANITE_KEYS,
            Key("scales.attention", "attention.scale", "f32", MIN_SCALE, MAX_SCALE, OPTIONAL),
            Key("scales.output", "logit_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
            without=("scales.logits",),
        ),
        Key("has_post_norms", "", "bool", tensor="layers.{}.attn_post_norm.weight"),
    )
    tensors = DECODER_TENSORS | POST_NORM_TENSORS
