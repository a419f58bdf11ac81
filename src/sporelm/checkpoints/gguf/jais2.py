"""GGUF files of Jais 2."""

from sporelm.checkpoints.gguf.nemotron import NemotronGguf
from sporelm.checkpoints.schema_registry import register


@register
class Jais2Gguf(NemotronGguf):
    """`jais2`: Nemotron's layer with rotary positions of whole heads (Inception 2025)."""

    names = ("jais2",)
    allows_partial_rotary = False
