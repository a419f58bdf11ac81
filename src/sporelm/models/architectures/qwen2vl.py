"""Qwen2-VL and Qwen2.5-VL, their text model: Qwen2 whose rotary positions are three, which in a text are one."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Qwen2VLConfig(ModelConfig):
    """How a text model of Qwen places images (Wang et al. 2024). A text has none, so that these numbers change nothing.

    mrope_section     pairs of a head that are rotated by time, by height and by width
    deepstack_layers  layers whose rows of images get more of the vision tower (DeepStack, Meng et al. 2024)
    """

    mrope_section: tuple[int, ...] = ()
    deepstack_layers: int = 0


@architecture("qwen2vl", Qwen2VLConfig)
class Qwen2VL(Decoder[Qwen2VLConfig]):
    """Qwen2's layer (Wang et al. 2024; Bai et al. 2025)."""
