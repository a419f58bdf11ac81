"""Qwen2-VL and Qwen2.5-VL, their text model: Qwen2 with multimodal RoPE, whose three positions are equal in texts."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Qwen2VLConfig(ModelConfig):
    """Fields for images (Wang et al. 2024). Texts do not use them.

    mrope_section     pairs of a head that are rotated by time, by height and by width
    deepstack_layers  layers that add features of the vision tower to rows of images (DeepStack, Meng et al. 2024)
    """

    mrope_section: tuple[int, ...] = ()
    deepstack_layers: int = 0


@architecture("qwen2vl", Qwen2VLConfig)
class Qwen2VL(Decoder[Qwen2VLConfig]):
    """Qwen2's layer (Wang et al. 2024; Bai et al. 2025)."""
