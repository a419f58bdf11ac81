"""The image processor of InternVL: cuts a picture into tiles, followed by a thumbnail of the whole.

Source: transformers' GotOcr2ImageProcessor and InternVLProcessor; `dynamic_preprocess` in the authors' folders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.checkpoints.multimodal_text import INTERNVL_CHAT
from sporelm.checkpoints.towers.gguf.internvl import MAX_TILES_KEY, MIN_TILES_KEY
from sporelm.errors import ModelFileError
from sporelm.files.json_object import read_object
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.towers.internvl import InternVLTowerConfig
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage, cut_patches
from sporelm.vision.pixels import BICUBIC, normalize, resize
from sporelm.vision.processor_files import (
    BYTE_SCALE,
    CLIP_MEAN,
    CLIP_STD,
    metadata_normalization,
    normalization_metadata,
    read_filter,
    read_normalization,
    read_processor_files,
    read_square,
    settings_json,
)

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
CONTEXT: Final = "<IMG_CONTEXT>"
MAX_TILES: Final = 1 << 10


@dataclass(frozen=True)
class InternVLSettings:
    """The settings of a processor.

    tile            side of a tile, in pixels
    patch           side of a patch, in pixels
    merge           side of the squares of patches that become one row
    min_tiles       minimum number of tiles of a picture, without the thumbnail
    max_tiles       maximum number of tiles, without the thumbnail
    has_thumbnail   several tiles are followed by the whole picture, resized to one tile
    resample        Pillow's number of the filter
    scale, mean, std   see `pixels.normalize`
    """

    tile: int
    patch: int
    merge: int
    min_tiles: int = 1
    max_tiles: int = 12
    has_thumbnail: bool = True
    resample: int = BICUBIC
    scale: float = BYTE_SCALE
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def grid_side(self) -> int:
        """Patches along a side of a tile."""
        return self.tile // self.patch

    @property
    def tile_rows(self) -> int:
        """The number of image rows of a tile."""
        return (self.grid_side // self.merge) ** 2


class InternVLProcessor(ImageProcessor):
    """Cuts pictures into square tiles in the grid whose shape is closest to theirs."""

    placeholder = CONTEXT
    row_token = CONTEXT
    prompt_text = f"{CONTEXT}\n"

    def __init__(self, settings: InternVLSettings) -> None:
        self.settings = settings

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        settings, (height, width) = self.settings, pixels.shape[:2]
        columns, rows = self.choose_grid(width, height)
        tile = settings.tile
        parts = [self._cut(resize(pixels, rows * tile, columns * tile, settings.resample))]
        if settings.has_thumbnail and columns * rows > 1:
            parts.append(self._cut(resize(pixels, tile, tile, settings.resample)))
        patches = np.concatenate(parts)
        grid = (1, settings.grid_side, settings.grid_side)
        count = self.count_rows(width, height)
        image = ImageInput(patches, (grid,) * (count // settings.tile_rows), count)
        return ProcessedImage(f"<img>{CONTEXT * count}</img>", (image,))

    def count_rows(self, width: int, height: int) -> int:
        columns, rows = self.choose_grid(width, height)
        tiles = columns * rows
        return (tiles + (tiles > 1 and self.settings.has_thumbnail)) * self.settings.tile_rows

    def to_metadata(self) -> dict[str, MetadataEntry]:
        settings = self.settings
        tiles = {MIN_TILES_KEY: ("u32", settings.min_tiles), MAX_TILES_KEY: ("u32", settings.max_tiles)}
        return {**normalization_metadata(settings), **tiles}

    def to_files(self) -> dict[str, dict[str, Any]]:
        settings = self.settings
        values = {
            "image_processor_type": "GotOcr2ImageProcessor",
            "crop_to_patches": settings.max_tiles > 1,
            "min_patches": settings.min_tiles,
            "max_patches": settings.max_tiles,
            "size": {"height": settings.tile, "width": settings.tile},
            **settings_json(settings),
        }
        whole = {"processor_class": "InternVLProcessor", "image_seq_length": settings.tile_rows}
        return {"preprocessor_config.json": values, "processor_config.json": whole}

    def choose_grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the (columns, rows) of tiles for a picture of this size.

        Of two equally close grids, the one with more tiles is taken unless it has twice the picture's pixels or more.
        """
        settings, best, least = self.settings, (1, 1), float("inf")
        for columns, rows in list_grids(settings.min_tiles, settings.max_tiles):
            difference = abs(width / height - columns / rows)
            is_covered = width * height > 0.5 * settings.tile * settings.tile * columns * rows
            if difference < least or (difference == least and is_covered):
                best, least = (columns, rows), difference
        return best

    def _cut(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the patches of whole tiles, tile after tile."""
        settings = self.settings
        tile, used = settings.tile, settings.grid_side * settings.patch  # a convolution drops pixels of a partial patch
        values = normalize(pixels, settings.mean, settings.std, settings.scale)
        starts = [(y, x) for y in range(0, pixels.shape[0], tile) for x in range(0, pixels.shape[1], tile)]
        return np.concatenate([cut_patches(values[:, y : y + used, x : x + used], settings.patch) for y, x in starts])


@lru_cache(maxsize=16)
def list_grids(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return (columns, rows) of all grids with these numbers of tiles, the smaller ones first."""
    grids = [
        (columns, rows)
        for columns in range(1, max_tiles + 1)
        for rows in range(-(-min_tiles // columns), max_tiles // columns + 1)
    ]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def from_folder(folder: Path, config: TowerConfig, tokens: Callable[[str], bool]) -> InternVLProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError for impossible settings."""
    assert isinstance(config, InternVLTowerConfig)
    files = read_processor_files(folder)
    is_chat = INTERNVL_CHAT in (read_object(folder / "config.json").get("architectures") or [])
    if is_chat:  # the authors' code has constants for all but the tiles, which are in config.json
        scale, mean, std = read_normalization(files.image, IMAGENET_MEAN, IMAGENET_STD)
        return InternVLProcessor(_settings(config, scale=scale, mean=mean, std=std))
    scale, mean, std = read_normalization(files.image, CLIP_MEAN, CLIP_STD)
    least = files.image.integer("min_patches", 1, MAX_TILES, 1)
    settings = _settings(
        config,
        tile=_read_tile(files.image, config),
        min_tiles=least,
        max_tiles=files.image.integer("max_patches", least, MAX_TILES, max(12, least)),
        resample=read_filter(files.image, BICUBIC),
        scale=scale,
        mean=mean,
        std=std,
    )
    return InternVLProcessor(settings)


def from_metadata(metadata: Mapping[str, Any], config: TowerConfig, tokens: Callable[[str], bool]) -> InternVLProcessor:
    """Return the processor of an mmproj file. Raises ModelFileError for missing settings."""
    assert isinstance(config, InternVLTowerConfig)
    mean, std = metadata_normalization(metadata)
    return InternVLProcessor(_settings(config, mean=mean, std=std))


def _settings(config: InternVLTowerConfig, **changes: Any) -> InternVLSettings:
    given = {
        "tile": config.image_size,
        "patch": config.patch,
        "merge": config.merge,
        "min_tiles": config.min_tiles,
        "max_tiles": config.max_tiles,
        "has_thumbnail": config.has_thumbnail,
    }
    return InternVLSettings(**{**given, **changes})


def _read_tile(values: ConfigValues, config: InternVLTowerConfig) -> int:
    """Return the side of a tile in a processor's settings. Raises ModelFileError unless it is valid."""
    default = {"height": config.image_size, "width": config.image_size}
    height, width = read_square(values, "size", default)
    unit = config.patch * config.merge
    if height != width or height // config.patch % config.merge or height < unit:
        raise ModelFileError(
            f"{values.where}: size is {width}x{height}; it must be square, with a multiple of {config.merge} patches of"
            f" {config.patch} pixels a side"
        )
    return height
