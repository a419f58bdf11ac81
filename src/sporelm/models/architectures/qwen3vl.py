"""Qwen3-VL, its text model: Qwen3 with interleaved multimodal RoPE, whose three positions are equal in texts."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.qwen2vl import Qwen2VLConfig
from sporelm.models.architectures.qwen3 import Qwen3


@architecture("qwen3vl", Qwen2VLConfig)
class Qwen3VL(Qwen3):
    """Qwen3's layer, or the same with a mixture of experts (Bai et al. 2025)."""
