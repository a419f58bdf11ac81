"""The image processor of Idefics3, SmolVLM and SmolVLM2: cuts a picture into square tiles, followed by the
whole picture as one tile.

Source: transformers, image_processing_pil_idefics3.py, processing_idefics3.py and processing_smolvlm.py, whose
arithmetic is the same. All tiles have one size: transformers' masks of padded pixels are all ones, and the padding
tiles of shorter lists of tiles, which the model leaves out, occur only between requests of a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage, cut_patches
from sporelm.vision.pixels import LANCZOS, Pixels, normalize, resize
from sporelm.vision.processor_files import (
    BYTE_SCALE,
    HALF,
    MAX_SIDE,
    MEAN_KEY,
    STD_KEY,
    metadata_normalization,
    metadata_values,
    read_filter,
    read_normalization,
    read_processor_files,
    require_resizing,
)

MAX_EDGE: Final = 4096  # limit of a resized side in pixels, independent of the settings
TILE: Final = 364
LONGEST_EDGE_KEY: Final = "clip.vision.preproc_image_size"
IMAGE: Final = "<image>"
FAKE: Final = "<fake_token_around_image>"
GLOBAL: Final = "<global-img>"


@dataclass(frozen=True)
class Idefics3Settings:
    """The settings of a processor. Defaults are those of transformers.

    longest_edge  length to which the longer side of a picture is resized, in pixels
    tile          side of a tile, in pixels
    splits        pictures are cut into tiles; else a picture is resized to one tile
    resample      Pillow's filter
    scale, mean, std   see `pixels.normalize`
    """

    longest_edge: int = 4 * TILE
    tile: int = TILE
    splits: bool = True
    resample: int = LANCZOS
    scale: float = BYTE_SCALE
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF

    def metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings as the metadata of an mmproj file, under full keys."""
        return {
            MEAN_KEY: ("[f32]", list(self.mean)),
            STD_KEY: ("[f32]", list(self.std)),
            LONGEST_EDGE_KEY: ("u32", self.longest_edge),
        }


class TileGrid(NamedTuple):
    """The tiles of a picture. No rows and columns: the whole picture is the only tile.

    resized  (height, width) of the first resize, which keeps the aspect ratio
    """

    resized: tuple[int, int]
    rows: int
    columns: int


class Idefics3Processor(ImageProcessor):
    """Writes "<image>" once for each row of the tower, after a tag for each tile."""

    placeholder = IMAGE
    row_token = IMAGE

    def __init__(self, settings: Idefics3Settings, config: TowerConfig, where: str) -> None:
        self.settings, self.patch = settings, config.patch
        self.side = settings.tile // config.patch  # patches of a tile
        if self.side == 0 or self.side % config.merge:
            raise ModelFileError(
                f"{where}: tiles of {settings.tile} pixels hold {self.side} patches of {config.patch} pixels on a side;"
                f" the vision tower joins {config.merge}"
            )
        self.tile_rows = (self.side // config.merge) ** 2

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        grid, tile = self._grid(*pixels.shape[:2]), self.settings.tile
        if not self.settings.splits:
            pixels = self._resize(self._resize(pixels, *grid.resized), tile, tile)
            return ProcessedImage(self._text(grid), (self._input(pixels),))
        rows, columns = max(grid.rows, 1), max(grid.columns, 1)
        whole = self._resize(self._resize(pixels, *grid.resized), rows * tile, columns * tile)
        if not grid.rows:
            return ProcessedImage(self._text(grid), (self._input(whole),))
        tiles = [
            whole[y * tile : (y + 1) * tile, x * tile : (x + 1) * tile] for y in range(rows) for x in range(columns)
        ]
        images = [self._input(each) for each in (*tiles, self._resize(whole, tile, tile))]
        return ProcessedImage(self._text(grid), tuple(images))

    def count_rows(self, width: int, height: int) -> int:
        grid = self._grid(height, width)
        return self.tile_rows * (grid.rows * grid.columns + 1)

    def to_metadata(self) -> dict[str, MetadataEntry]:
        return self.settings.metadata()

    def _grid(self, height: int, width: int) -> TileGrid:
        resized = long_edge_size(height, width, self.settings.longest_edge)
        if not self.settings.splits:
            return TileGrid(resized, 0, 0)
        rows, columns = count_tiles(*resized, self.settings.tile)
        return TileGrid(resized, rows, columns) if rows * columns > 1 else TileGrid(resized, 0, 0)

    def _resize(self, pixels: Pixels, height: int, width: int) -> Pixels:
        return resize(pixels, height, width, self.settings.resample)

    def _input(self, pixels: Pixels) -> ImageInput:
        """Return a tile as the tower reads it. Pixels past the last whole patch are left out."""
        settings, size = self.settings, self.side * self.patch
        values = normalize(pixels[:size, :size], settings.mean, settings.std, settings.scale)
        return ImageInput(cut_patches(values, self.patch), ((1, self.side, self.side),), self.tile_rows)

    def _text(self, grid: TileGrid) -> str:
        run = IMAGE * self.tile_rows
        whole = f"{FAKE}{GLOBAL}{run}{FAKE}"
        if not grid.rows:
            return whole
        lines = [
            "".join(f"{FAKE}<row_{y + 1}_col_{x + 1}>{run}" for x in range(grid.columns)) for y in range(grid.rows)
        ]
        return "\n".join([*lines, "", whole])


def long_edge_size(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return (height, width) of a picture whose longer side becomes `edge`; the other one is rounded to an even number.
    No side exceeds MAX_EDGE."""
    ratio = width / height
    if width >= height:
        height, width = int(edge / ratio), edge
        height += height % 2
    else:
        height, width = edge, int(edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > MAX_EDGE:
        height, width = int(MAX_EDGE / ratio), MAX_EDGE
    elif height > MAX_EDGE:
        height, width = MAX_EDGE, int(MAX_EDGE * ratio)
    return max(height, 1), max(width, 1)


def count_tiles(height: int, width: int, tile: int) -> tuple[int, int]:
    """Return the rows and columns of tiles that cover a picture whose longer side is stretched to whole tiles."""
    ratio = width / height
    if width >= height:
        columns = ceil(width / tile)
        return ceil(int(columns * tile / ratio) / tile), columns
    rows = ceil(height / tile)
    return rows, ceil(int(rows * tile * ratio) / tile)


def from_folder(folder: Path, config: TowerConfig, tokens: Any) -> Idefics3Processor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError for a missing or impossible value,
    UnsupportedModel for an unsupported option."""
    files = read_processor_files(folder)
    values = files.image
    require_resizing(values)
    scale, mean, std = read_normalization(values, HALF, HALF)
    settings = Idefics3Settings(
        longest_edge=_read_edge(values, "size", 4 * TILE),
        tile=_read_edge(values, "max_image_size", TILE),
        splits=values.flag("do_image_splitting", True),
        resample=read_filter(values, LANCZOS),
        scale=scale,
        mean=mean,
        std=std,
    )
    found = Idefics3Processor(settings, config, values.where)
    rows = files.processor.integer("image_seq_len", 1, MAX_SIDE**2, found.tile_rows)
    if rows != found.tile_rows:
        raise ModelFileError(
            f"{files.processor.where}: image_seq_len is {rows}; the vision tower returns {found.tile_rows} rows"
        )
    return found


def from_metadata(metadata: Mapping[str, Any], config: TowerConfig, tokens: Any) -> Idefics3Processor:
    """Return the processor of an mmproj file. Raises ModelFileError for a missing or impossible value."""
    mean, std = metadata_normalization(metadata)
    values = metadata_values(metadata)
    edge = values.integer(LONGEST_EDGE_KEY, 1, MAX_SIDE, 4 * config.image_size)
    settings = Idefics3Settings(longest_edge=edge, tile=config.image_size, mean=mean, std=std)
    return Idefics3Processor(settings, config, values.where)


def _read_edge(values: ConfigValues, key: str, default: int) -> int:
    """Return a size setting {"longest_edge": ...}."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, Mapping) or value.get("longest_edge") is None:
        raise UnsupportedModel(
            f"{values.where}: {key} is not supported (got {format_value(value)}; allowed an object with longest_edge)"
        )
    return ConfigValues(value, f"{values.where}: {key}").integer("longest_edge", 1, MAX_SIDE)
