"""The image processor of LLaVA 1.5: resizes a picture, and crops or pads it to the tower's size.

Source: transformers' processing_llava.py, and the image processors of CLIP, SigLIP and LLaVA. mmproj files do not
store these settings: pictures are then padded, as by llama.cpp's mtmd and the model's authors.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.llava import LlavaTowerConfig
from sporelm.vision.fixed_size import (
    MTMD_COLOR,
    FixedSizeSettings,
    metadata_settings,
    read_settings,
    tile_input,
)
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from sporelm.vision.processor_files import CLIP_MEAN, CLIP_STD, HALF, read_processor_files
from sporelm.vision.token_names import read_token

IMAGE: Final = "<image>"


class LlavaProcessor(ImageProcessor):
    """One tile of fixed size."""

    def __init__(self, settings: FixedSizeSettings, config: LlavaTowerConfig, token: str = IMAGE) -> None:
        self.settings, self.config = settings, config
        self.placeholder = self.row_token = token
        self.prompt_text = f"{token}\n"

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        rows = self.config.kept_rows
        image = tile_input(self.settings.apply(pixels), self.config, rows)
        return ProcessedImage(self.row_token * rows, (image,))

    def count_rows(self, width: int, height: int) -> int:
        return self.config.kept_rows

    def to_metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings that an mmproj file stores, under full keys."""
        return self.settings.to_metadata()

    def to_files(self) -> dict[str, dict[str, Any]]:
        whole = processor_json("LlavaProcessor", self.config, self.row_token)
        return {"preprocessor_config.json": self.settings.to_json(), "processor_config.json": whole}


def processor_json(class_name: str, config: LlavaTowerConfig, token: str) -> dict[str, Any]:
    """Return processor_config.json for one of LLaVA's classes."""
    return {
        "processor_class": class_name,
        "image_token": token,
        "patch_size": config.patch,
        "num_additional_image_tokens": int(config.has_class_row),
        "vision_feature_select_strategy": "default" if config.drops_first_row else "full",
    }


def has_siglip_settings(kind: object, config: LlavaTowerConfig) -> bool:
    """Return whether an image processor of this class has the defaults of SigLIP's, not those of CLIP's."""
    return "Siglip" in kind if isinstance(kind, str) else not config.has_class_row


def from_folder(folder: Path, config: TowerConfig, has_token: Callable[[str], bool]) -> LlavaProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError, UnsupportedModel."""
    assert isinstance(config, LlavaTowerConfig)
    values = read_processor_files(folder).image
    is_siglip = has_siglip_settings(values.get("image_processor_type"), config)
    mean, std = (HALF, HALF) if is_siglip else (CLIP_MEAN, CLIP_STD)
    settings = read_settings(values, config, crops=not is_siglip, mean=mean, std=std)
    return LlavaProcessor(settings, config, read_token(folder, "image_token", IMAGE))


def from_metadata(metadata: Mapping[str, Any], config: TowerConfig, has_token: Callable[[str], bool]) -> LlavaProcessor:
    """Return the processor of an mmproj file. Raises ModelFileError for missing or impossible values."""
    assert isinstance(config, LlavaTowerConfig)
    return LlavaProcessor(metadata_settings(metadata, config, fit_color=MTMD_COLOR), config)
