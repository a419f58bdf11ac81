"""GGUF files of A.X K1."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import GGUF_CHOICE_BIAS_KEY, V3_GGUF_KEYS, V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LatentGgufSchema
from sporelm.checkpoints.latent_tensors import LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.axk1 import AXK1

AXK1_CONSTANTS: Final = {**V3_ROUTING, "experts.choice_bias": False, "rope_style": "adjacent"}


@register
class Axk1Gguf(LatentGgufSchema):
    """`axk1`."""

    names = ("axk1",)
    architecture = AXK1
    keys = gguf_keys(
        *LATENT_GGUF_KEYS, *V3_GGUF_KEYS, *gguf_expert_keys("scores"), GGUF_CHOICE_BIAS_KEY, without=("window",)
    )
    constants = AXK1_CONSTANTS
    tensors = {
        **DECODER_TENSORS,
        **LATENT_GGUF_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        "layers.{}.ffn_post_norm.weight": "blk.{}.post_ffw_norm.weight",
    }
