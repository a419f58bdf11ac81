"""Qwen2-VL and Qwen2.5-VL, their text model: Qwen2 with multimodal RoPE, whose three positions are equal in texts."""

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.rotary import sections
from sporelm.models.tower_inputs import ImageInput


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

    has_rope_positions = True

    def layer(self, config: Qwen2VLConfig, index: int) -> Layer:
        streams = sections(config.mrope_section)
        return pre_norm(config, index, Attention(f"layers.{index}", config, config.window_of(index), streams=streams))

    def image_positions(self, image: ImageInput) -> NDArray[np.int32]:
        return grid_positions(image)


def grid_positions(image: ImageInput) -> NDArray[np.int32]:
    """Return time, height and width of each row of an image, int32 [num_rows, 3]; a row is a square of patches."""
    patches = sum(time * height * width for time, height, width in image.grids)
    merge = isqrt(patches // image.num_rows)
    grids = [np.indices((time, height // merge, width // merge)) for time, height, width in image.grids]
    return np.concatenate([grid.reshape(3, -1).T for grid in grids]).astype(np.int32)
