"""The image processor of CogVLM and CogVLM2: resizes pictures to a fixed square (`build_conversation_input_ids` in the
authors' code)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage, cut_patches
from sporelm.vision.pixels import BICUBIC, normalize, resize
from sporelm.vision.processor_files import (
    BYTE_SCALE,
    CLIP_MEAN,
    CLIP_STD,
    metadata_normalization,
    normalization_metadata,
    read_normalization,
    read_processor_files,
)

# Not in the vocabulary, and not written by chat templates: the processor's own placeholder.
ROW: Final = "<IMAGE_TOKEN>"
ENDS: Final = 2  # learned rows, one before and one after the patches


@dataclass(frozen=True)
class CogVLMSettings:
    """The settings of a processor.

    size    side of pictures, in pixels
    patch   side of a patch, in pixels
    merge   side of the squares of patches that become one row
    scale, mean, std   see `pixels.normalize`
    """

    size: int
    patch: int
    merge: int
    scale: float = BYTE_SCALE
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    @property
    def grid_side(self) -> int:
        """Patches along a side of a picture."""
        return self.size // self.patch


class CogVLMProcessor(ImageProcessor):
    """Resizes pictures to a square, whatever their shape."""

    placeholder = ROW
    row_token = ROW
    has_settings_file = False

    def __init__(self, settings: CogVLMSettings) -> None:
        self.settings = settings

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        settings = self.settings
        used = settings.grid_side * settings.patch  # a convolution drops pixels of a partial patch
        values = normalize(
            resize(pixels, settings.size, settings.size, BICUBIC), settings.mean, settings.std, settings.scale
        )
        count = self.count_rows(pixels.shape[1], pixels.shape[0])
        grid = (1, settings.grid_side, settings.grid_side)
        image = ImageInput(cut_patches(values[:, :used, :used], settings.patch), (grid,), count)
        return ProcessedImage(ROW * count, (image,))

    def count_rows(self, width: int, height: int) -> int:
        return (self.settings.grid_side // self.settings.merge) ** 2 + ENDS

    def to_metadata(self) -> dict[str, MetadataEntry]:
        return normalization_metadata(self.settings)

    def to_files(self) -> dict[str, dict[str, Any]]:
        settings = self.settings
        values: dict[str, Any] = {"do_normalize": True, "do_rescale": True, "rescale_factor": settings.scale}
        values |= {"image_mean": list(settings.mean), "image_std": list(settings.std)}
        return {"preprocessor_config.json": values}


def from_folder(folder: Path, config: TowerConfig, tokens: Callable[[str], bool]) -> CogVLMProcessor:
    """Return the processor of a Hugging Face folder. The authors' folders lack such settings; defaults are CLIP's."""
    scale, mean, std = read_normalization(read_processor_files(folder).image, CLIP_MEAN, CLIP_STD)
    return CogVLMProcessor(CogVLMSettings(config.image_size, config.patch, config.merge, scale, mean, std))


def from_metadata(metadata: Mapping[str, Any], config: TowerConfig, tokens: Callable[[str], bool]) -> CogVLMProcessor:
    """Return the processor of an mmproj file. Raises ModelFileError for missing settings."""
    mean, std = metadata_normalization(metadata)
    return CogVLMProcessor(CogVLMSettings(config.image_size, config.patch, config.merge, BYTE_SCALE, mean, std))
