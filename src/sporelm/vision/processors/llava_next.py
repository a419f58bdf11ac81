"""The image processor of LLaVA-NeXT: a downscaled tile of the whole picture, then tiles of a larger copy.

Source: transformers' image_processing_pil_llava_next.py, processing_llava_next.py, and `unpad_image` in
modeling_llava_next.py.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.checkpoints.towers.hf.llava_next import check_pinpoints
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.towers.llava_next import LlavaNextConfig, TileLayout
from sporelm.vision.fixed_size import SIZE, FixedSizeSettings, as_sides, metadata_settings, tile_input
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from sporelm.vision.pixels import BICUBIC, Pixels, fitting_size, pad_around, resize
from sporelm.vision.processor_files import (
    CLIP_MEAN,
    CLIP_STD,
    check_image_size,
    read_filter,
    read_normalization,
    read_processor_files,
    read_square,
    settings_json,
)
from sporelm.vision.processors.llava import IMAGE, processor_json
from sporelm.vision.token_names import read_token

BLACK = (0, 0, 0)
DIGITS = 7  # to which transformers rounds the size of a picture without padding


class LlavaNextProcessor(ImageProcessor):
    """Tiles of fixed size; their number depends on the picture's shape."""

    def __init__(
        self,
        settings: FixedSizeSettings,
        config: LlavaNextConfig,
        pinpoints: Sequence[tuple[int, int]],
        token: str = IMAGE,
    ) -> None:
        self.settings, self.config, self.pinpoints = settings, config, tuple(pinpoints)
        self.placeholder = self.row_token = token
        self.prompt_text = f"{token}\n"

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        height, width = pixels.shape[:2]
        size = select_size(height, width, self.pinpoints)
        tiles = [self.settings.resize(pixels), *self._cut(pixels, size)]
        inputs = [tile_input(self.settings.normalize(tile), self.config, 0) for tile in tiles]
        layout = self._layout(height, width, size)
        rows = self._count(size, layout)
        patches = np.concatenate([each.patches for each in inputs])
        grids = tuple(grid for each in inputs for grid in each.grids)
        image = ImageInput(patches, grids, rows, tuple(layout) if layout else ())
        return ProcessedImage(self.row_token * rows, (image,))

    def count_rows(self, width: int, height: int) -> int:
        size = select_size(height, width, self.pinpoints)
        return self._count(size, self._layout(height, width, size))

    def to_metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings that an mmproj file stores, under full keys. The tower's metadata has the sizes."""
        return self.settings.to_metadata()

    def to_files(self) -> dict[str, dict[str, Any]]:
        side = self.config.image_size
        values = {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": side},
            "do_center_crop": True,
            "crop_size": as_sides((side, side)),
            "do_pad": True,
            "image_grid_pinpoints": [list(pair) for pair in self.pinpoints],
            **settings_json(self.settings),
        }
        whole = processor_json("LlavaNextProcessor", self.config, self.row_token)
        return {"preprocessor_config.json": values, "processor_config.json": whole}

    def _cut(self, pixels: Pixels, size: tuple[int, int]) -> list[Pixels]:
        """Return the tiles of a picture in this size."""
        inner = fitting_size(pixels.shape[0], pixels.shape[1], size)
        whole, side = pad_around(resize(pixels, *inner, self.settings.resample), *size, BLACK), self.config.image_size
        return [whole[y : y + side, x : x + side] for y in range(0, size[0], side) for x in range(0, size[1], side)]

    def _layout(self, height: int, width: int, size: tuple[int, int]) -> TileLayout | None:
        """Return the position of a picture of this height and width in its tiles; None if padding is kept."""
        if not self.config.has_newline:
            return None
        down, across = (each // self.config.image_size for each in size)
        rows, columns = down * self.config.grid, across * self.config.grid
        if width / height > columns / rows:
            top = (rows - int(round(height * (columns / width), DIGITS))) // 2
            return TileLayout(down, across, top, 0, rows - 2 * top, columns)
        left = (columns - int(round(width * (rows / height), DIGITS))) // 2
        return TileLayout(down, across, 0, left, rows, columns - 2 * left)

    def _count(self, size: tuple[int, int], layout: TileLayout | None) -> int:
        tile = self.config.grid**2
        if layout is None:
            return tile * (1 + size[0] * size[1] // self.config.image_size**2)
        return tile + layout.height * (layout.width + 1)


def select_size(height: int, width: int, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the size, (height, width), that keeps most of a picture's pixels; of several, that with least padding."""
    best, most, least = sizes[0], 0, float("inf")
    for size in sizes:
        scale = min(size[1] / width, size[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = size[0] * size[1] - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = size, kept, wasted
    return best


def read_pinpoints(values: ConfigValues, config: LlavaNextConfig) -> tuple[tuple[int, int], ...]:
    """Return the sizes that the processor names, else those of config.json."""
    found = values.get("image_grid_pinpoints")
    return config.pinpoints if found is None else check_pinpoints(values.where, found, config.image_size)


def from_folder(folder: Path, config: TowerConfig, has_token: Callable[[str], bool]) -> LlavaNextProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError, UnsupportedModel."""
    assert isinstance(config, LlavaNextConfig)
    values = read_processor_files(folder).image
    size, crop = (read_square(values, key, SIZE) for key in ("size", "crop_size"))
    for each in (size, crop):
        check_image_size(values.where, each, config.image_size)
    scale, mean, std = read_normalization(values, CLIP_MEAN, CLIP_STD)
    settings = FixedSizeSettings(size, None, None, None, read_filter(values, BICUBIC), scale, mean, std)
    token = read_token(folder, "image_token", IMAGE)
    return LlavaNextProcessor(settings, config, read_pinpoints(values, config), token)


def from_metadata(
    metadata: Mapping[str, Any], config: TowerConfig, has_token: Callable[[str], bool]
) -> LlavaNextProcessor:
    """Return the processor of an mmproj file. Raises ModelFileError for missing or impossible values."""
    assert isinstance(config, LlavaNextConfig)
    return LlavaNextProcessor(metadata_settings(metadata, config), config, config.pinpoints)
