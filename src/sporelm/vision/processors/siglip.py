"""The image processor of SigLIP as an image encoder: a picture stretched to the tower's size.

Source: transformers' image_processing_pil_siglip.py.
"""

from collections.abc import Callable
from pathlib import Path

from sporelm.models.tower_config import TowerConfig
from sporelm.models.vit_tower import VitConfig
from sporelm.vision.fixed_size import read_settings
from sporelm.vision.processor_files import HALF, read_processor_files
from sporelm.vision.processors.clip import EncoderProcessor


def from_folder(folder: Path, config: TowerConfig, has_token: Callable[[str], bool]) -> EncoderProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError, UnsupportedModel."""
    assert isinstance(config, VitConfig)
    values = read_processor_files(folder).image
    return EncoderProcessor(read_settings(values, config, crops=False, mean=HALF, std=HALF), config)
