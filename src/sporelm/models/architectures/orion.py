"""Orion: Llama with layer norms."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import LayerNorm
from sporelm.models.decoder import Decoder


@architecture("orion")
class Orion(Decoder):
    """The Llama layer with layer norms (OrionStar 2024)."""

    norms = LayerNorm
