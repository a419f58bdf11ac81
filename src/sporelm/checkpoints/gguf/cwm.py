"""GGUF files of the Code World Model."""

from typing import Final

from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama

WINDOW_STEP: Final = 4


def first_of_each_run(layers: int) -> frozenset[int]:
    """Return the layers without a window: the first of each four."""
    return frozenset(range(0, layers, WINDOW_STEP))


@register
class CwmGguf(GgufSchema):
    """`cwm`: Llama 3 with a window in three of four layers (FAIR CodeGen team 2025)."""

    names = ("cwm",)
    architecture = Llama
    tensors = DECODER_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_of_each_run(layers)
