"""The image processor of CLIP as an image encoder: a center crop at the tower's size.

Source: transformers' image_processing_pil_clip.py.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sporelm.models.tower_config import TowerConfig
from sporelm.models.vit_tower import VitConfig
from sporelm.vision.fixed_size import FixedSizeSettings, read_settings, tile_input
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from sporelm.vision.processor_files import read_processor_files


class EncoderProcessor(ImageProcessor):
    """One tile, which becomes one vector. There is no prompt."""

    placeholder = row_token = ""

    def __init__(self, settings: FixedSizeSettings, config: VitConfig) -> None:
        self.settings, self.config = settings, config

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        return ProcessedImage("", (tile_input(self.settings.apply(pixels), self.config, 1),))

    def count_rows(self, width: int, height: int) -> int:
        return 1


def from_folder(folder: Path, config: TowerConfig, has_token: Callable[[str], bool]) -> EncoderProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError, UnsupportedModel."""
    assert isinstance(config, VitConfig)
    return EncoderProcessor(read_settings(read_processor_files(folder).image, config, crops=True), config)
